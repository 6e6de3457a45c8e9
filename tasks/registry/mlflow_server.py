"""`mlflow server` in one process instead of two.

The command line of MLflow starts uvicorn and then only waits for it, with 180 MiB. Here its
process becomes uvicorn. Without jobs (`MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false`) it has nothing
else to do.

Usage: `python -m tasks.registry.mlflow_server --host 127.0.0.1 --port 5000 …`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from mlflow import server
from mlflow.cli import cli


def _become(command: Sequence[str], *, extra_env: Mapping[str, str], **_: object) -> None:
    """Replace this process by the command, in the place of `mlflow.utils.process._exec_cmd`."""
    os.execvpe(command[0], list(command), {**os.environ, **extra_env})


def main() -> None:
    """Run `mlflow server` with the arguments of this command."""
    server._exec_cmd = _become  # pyright: ignore[reportPrivateImportUsage]
    cli(["server", *sys.argv[1:]])


if __name__ == "__main__":
    main()
