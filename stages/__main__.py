"""`python -m stages`; see `stages.runtime.command_line`.

A stage of a Ray job is forked from a server with torch already imported, if there is one.
"""

from __future__ import annotations

import atexit
import gc
import sys

from stages.runtime.forked_stage import run_forked

if __name__ == "__main__":
    if (code := run_forked(sys.argv[1:])) is not None:
        sys.exit(code)
    from stages.runtime.command_line import main  # takes a third of a second

    # Otherwise Python searches all objects for garbage at exit; see training_core.collector.
    atexit.register(gc.freeze)
    sys.exit(main())
