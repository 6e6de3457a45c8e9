"""Run one stage in this process: `python -m stages <attempt directory>/request.json`.

This is the entrypoint of every Ray job, and also what a person starts under a debugger. The attempt
directory is the one that holds the request. The exit code says why it ended; see `ExitCode`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stages.runtime.process import run_request

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m stages", description=__doc__)
    parser.add_argument("request", type=Path, help="request.json of an attempt at a stage")
    sys.exit(run_request(parser.parse_args().request))
