"""Run one stage in this process: `python -m stages <attempt directory>/request.json`.

This is the entrypoint of every Ray job, and also what a person starts under a debugger. The attempt
directory is the one that holds the request. The exit code says why it ended; see `ExitCode`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stages.process import run_request

if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004
        sys.exit(__doc__)
    sys.exit(run_request(Path(sys.argv[1])))
