"""One stage as several processes: start them, tell them to stop, and say how they ended.

Each worker is `python -m stages request.json` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT in its environment. They live and die together.
"""

from __future__ import annotations

import logging
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

from stages.contract import ExitCode, Resources

log = logging.getLogger("ratchet")

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""How long the others may take to end by themselves after the first one ended badly."""
IN_RAY_JOB = "RATCHET_IN_RAY_JOB"
"""Environment variable that a Ray job is given; elsewhere workers are processes of this machine."""


class Crew(Protocol):
    """Workers that were started."""

    def poll(self) -> Sequence[int | None]:
        """Exit code of each worker; None while it lives, negative for a signal."""
        ...

    def send(self, number: int) -> None:
        """Send a signal to every worker that lives."""
        ...

    def close(self) -> None:
        """Kill whoever is left and give everything back."""
        ...


def run_workers(request: Path, resources: Resources, stop: threading.Event) -> int:
    """Run the stage of `request` on `resources.num_workers` processes.

    Args:
        request: for `python -m stages`.
        resources: of each worker.
        stop: set when the workers are to save and leave.

    Returns:
        0 if all are done, else the exit code of the worker that failed.
    """
    if os.environ.get(IN_RAY_JOB):
        from stages.cluster import RayCrew

        crew: Crew = RayCrew(request, resources, stop)
    else:
        crew = LocalCrew(request, resources.num_workers)
    try:
        return supervise(crew, stop)
    finally:
        crew.close()


def supervise(crew: Crew, stop: threading.Event) -> int:
    """Wait until all workers are done, or the first has failed."""
    is_told = False
    while True:
        codes = crew.poll()
        if all(code == 0 for code in codes):
            return ExitCode.DONE
        if any(codes):  # one that is neither None nor 0
            return _failure(crew)
        if stop.is_set() and not is_told:
            log.info("telling the workers to stop")
            crew.send(signal.SIGTERM)
            is_told = True
        time.sleep(POLL_SECONDS)


def _failure(crew: Crew) -> int:
    deadline = time.monotonic() + GRACE_SECONDS
    while None in crew.poll() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    codes = crew.poll()
    log.error("workers ended with %s (None: killed by us)", list(codes))
    return exit_code_of(codes)


def exit_code_of(codes: Sequence[int | None]) -> int:
    """Tell the failure from its echoes: a worker that lost another one is TRANSIENT.

    Args:
        codes: of every worker.

    Returns:
        The first code that says why, else that of the first killed worker as a shell writes it
        (128 + signal), else what is left.
    """
    failed = [code for code in codes if code]
    known = [c for c in failed if c in tuple(ExitCode) and c != ExitCode.TRANSIENT]
    killed = [128 - code for code in failed if code < 0]
    return (known or killed or failed)[0]


class LocalCrew:
    """Workers on this machine.

    Args:
        request: for `python -m stages`.
        num_workers: how many.
    """

    def __init__(self, request: Path, num_workers: int) -> None:
        port = free_port()
        self._processes = [
            start_worker(
                request, rank_environment(rank, num_workers, "127.0.0.1", port, local_rank=rank)
            )
            for rank in range(num_workers)
        ]

    def poll(self) -> Sequence[int | None]:
        """Exit codes so far."""
        return [process.poll() for process in self._processes]

    def send(self, number: int) -> None:
        """Send a signal to every worker that lives."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def close(self) -> None:
        """Kill whoever is left."""
        self.send(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def rank_environment(
    rank: int, world_size: int, address: str, port: int, *, local_rank: int
) -> dict[str, str]:
    """Environment variables by which a worker knows itself and finds the others."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def start_worker(request: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `python -m stages` as a worker."""
    command = [sys.executable, "-m", "stages", str(request)]
    return subprocess.Popen(command, env={**os.environ, **environment})


def free_port() -> int:
    """Find a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def die_with_parent() -> None:
    """End this worker when whoever started it is gone, so that none is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(ExitCode.TRANSIENT)

    threading.Thread(target=watch, daemon=True).start()
