"""The processes of one stage: their environment, and a group of workers on this machine.

Each worker is `python -m stages request.json` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT in its environment.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stages.runtime.exit_codes import ExitCode
from stages.runtime.forked_stage import ForkedStage, fork_stage

IN_RAY_JOB = "RATCHET_IN_RAY_JOB"
"""Set in the environment of a Ray job. Without it workers are processes of this machine."""


class WorkerGroup(Protocol):
    """The started workers of one stage."""

    def poll(self) -> Sequence[int | None]:
        """Return the exit code of each worker; None while it runs, negative for a signal."""
        ...

    def send(self, number: int) -> None:
        """Send a signal to every worker that lives."""
        ...

    def close(self) -> None:
        """Kill workers that still run and release all resources."""
        ...


class LocalWorkerGroup:
    """Workers on this machine.

    Args:
        request: file for `python -m stages`.
        num_workers: number of workers.
    """

    def __init__(self, request: Path, num_workers: int) -> None:
        port = free_port()
        self._processes = [
            start_stage(
                request, rank_environment(rank, num_workers, "127.0.0.1", port, local_rank=rank)
            )
            for rank in range(num_workers)
        ]

    def poll(self) -> Sequence[int | None]:
        """Return the exit code of each worker; see `WorkerGroup`."""
        return [process.poll() for process in self._processes]

    def send(self, number: int) -> None:
        """Send a signal to every worker that lives."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def close(self) -> None:
        """Kill workers that still run."""
        self.send(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def rank_environment(
    rank: int, world_size: int, address: str, port: int, *, local_rank: int
) -> dict[str, str]:
    """Return the environment variables with a worker's rank and the address of the first."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def start_stage(
    request: Path, environment: Mapping[str, str], output: int | None = None
) -> subprocess.Popen[bytes] | ForkedStage:
    """Start `python -m stages <request>`; a fork server does it if there is one.

    Args:
        request: file that describes the stage.
        environment: variables in addition to those of this process.
        output: file descriptor for its output; None for the streams of this process.
    """
    whole = {**os.environ, **environment}
    if forked := fork_stage(request, whole, output):
        return forked
    command = [sys.executable, "-m", "stages", str(request)]
    return subprocess.Popen(command, env=whole, stdout=output, stderr=output)


def free_port() -> int:
    """Find a TCP port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def die_with_parent() -> None:
    """End this worker when the process that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(ExitCode.TRANSIENT)

    threading.Thread(target=watch, daemon=True).start()
