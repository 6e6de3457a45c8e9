"""Fork servers of a test: a folder for their sockets, and stages that are typed with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from stages.runtime.forked_stage import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


class ForkServers:
    """A folder of fork servers, and commands that use it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ratchet-"))  # short enough for a socket
        own = {"OMP_NUM_THREADS": "2", FOLDER_VARIABLE: str(self.folder)}
        self.environment = {**os.environ, **own}
        del self.environment["PYTEST_CURRENT_TEST"]  # or each test would need its own server

    def type_it(self, request: Path, *, folder: Path = ROOT, **variables: str) -> subprocess.Popen:
        """Start a stage as a Ray job does."""
        return subprocess.Popen(
            [sys.executable, "-m", "stages", str(request)],
            cwd=folder,
            env={**self.environment, "PYTHONPATH": str(folder), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def close(self) -> None:
        """Delete the folder, and wait until the servers have ended."""
        shutil.rmtree(self.folder)
        wait_until_gone(self.processes())

    def processes(self) -> list[psutil.Process]:
        """The servers, their stages, and the processes that watch the stages."""
        return [each for each in psutil.process_iter() if self._is_one(each)]

    def _is_one(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            ours = str(self.folder) in " ".join(process.cmdline())
            return ours and process.status() != psutil.STATUS_ZOMBIE
        return False

    def stages_of(self, request: Path) -> list[psutil.Process]:
        """Processes that were forked for a request, by the logs of the servers."""
        logs = "".join(log.read_text() for log in self.folder.glob("*.log"))
        found = re.findall(rf"process (\d+) runs {re.escape(str(request))}\n", logs)
        return [psutil.Process(int(pid)) for pid in found if psutil.pid_exists(int(pid))]


def wait_until_gone(processes: Sequence[psutil.Process]) -> None:
    wait_until(lambda: not any(is_live(process) for process in processes))


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_live(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
