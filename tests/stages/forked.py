"""Stages as processes of their own that find torch and transformers imported already.

The server process of `multiprocessing` imports both once (tests/conftest.py) and forks. So each
stage still has its own pid, gets real signals and ends with a real exit code, without the seconds
that imports take. What a Ray job types, `python -m stages request.json`, is typed in
test_stage_process.py and test_stage_hub.py.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path


class StageProcess:
    """A started stage, with the methods of `subprocess.Popen` that tests use.

    Args:
        arguments: what would be typed after `python -m stages`.
        variables: environment variables in addition to those of this process.
    """

    def __init__(self, *arguments: str | Path, **variables: str) -> None:
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=_run, args=(variables, *arguments), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code so far."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"the stage still runs after {timeout} s"
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def _run(variables: Mapping[str, str], *arguments: str | Path) -> None:
    """Be `python -m stages <arguments>`, whose lines go to its log file only."""
    from stages.runtime.command_line import main

    os.environ.update(variables)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    sys.exit(main([str(argument) for argument in arguments]))
