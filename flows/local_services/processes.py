"""Starting a process that continues after this one, and stopping it with all its children."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from flows.local_services.environment import SERVICE_VARIABLE, TOKEN_VARIABLE
from flows.local_services.state import ServiceRecord
from stages.files import make_private
from stages.runtime.worker_processes import IN_RAY_JOB

FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Set by Prefect's worker for the process of a flow run."""


def start(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
) -> tuple[int, float]:
    """Start a command in a session of its own, with its output appended to a log.

    Returns:
        Its pid and its creation time, which together identify a process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    make_private(log)  # a library may log the address of a team's server
    with log.open("ab") as output, _interruptible_children():
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return child.pid, psutil.Process(child.pid).create_time()


@contextmanager
def _interruptible_children() -> Iterator[None]:
    """Give children the default SIGINT, even under `nohup … &`, where it is ignored.

    An ignored signal stays ignored in children, and a Prefect worker that ignores SIGINT never
    stops: its SIGTERM only forwards SIGINT. A handled signal is reset to the default by exec.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def root_of(record: ServiceRecord) -> psutil.Process | None:
    """Return the live first process of a service, or None; never a later one with the same pid."""
    if record.pid is None:
        return None
    try:
        process = psutil.Process(record.pid)
        is_ours = process.create_time() == record.created
    except psutil.NoSuchProcess:
        return None
    return process if is_ours and is_live(process) else None


def is_live(process: psutil.Process) -> bool:
    """Whether a process still runs. A zombie has ended, but its parent has not read its status.

    In a container whose first process does not collect zombies, orphans stay zombies for ever.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family_of(record: ServiceRecord) -> list[psutil.Process]:
    """Return a service's live processes, the root first; includes children in other sessions."""
    root = root_of(record)
    if root is None:
        return []
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def listens(record: ServiceRecord) -> bool:
    """Whether a process of this service, not a foreign one, listens at its address."""
    port = urlsplit(record.url).port
    connections: list[Any] = []
    for process in family_of(record):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            connections += process.net_connections("tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def orphans_of(token: str) -> list[psutil.Process]:
    """Return live processes with a home's token, e.g. children of a killed root."""
    return [process for process, _ in _with_token(token)]


def remains_of(service: str, token: str) -> list[psutil.Process]:
    """Return the processes of a service that outlived its root and would be in its successor's way.

    Stages and flows are not among them: they go on, and their results count.
    """
    return [
        process
        for process, environment in _with_token(token)
        if environment.get(SERVICE_VARIABLE) == service
        and not environment.keys() & {IN_RAY_JOB, FLOW_RUN_VARIABLE}
    ]


def flow_processes() -> dict[str, list[psutil.Process]]:
    """Return the live processes of flow runs on this machine, by the id of the run."""
    found: dict[str, list[psutil.Process]] = {}
    for process, environment in _environments():
        if run_id := environment.get(FLOW_RUN_VARIABLE):
            found.setdefault(run_id, []).append(process)
    return found


def _with_token(token: str) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    for process, environment in _environments():
        if environment.get(TOKEN_VARIABLE) == token and process.pid != os.getpid():
            yield process, environment


def _environments() -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    """Yield each live process of this user with its environment."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            yield process, process.environ()


def stop(processes: Iterable[psutil.Process], *, grace_seconds: float) -> None:
    """Send SIGTERM to processes, wait, and kill those that still run.

    Every process gets the signal, not only the first, because a trainer then saves its state. All
    are collected before the first signal, because the children of a dead parent cannot be found.
    """
    signalled = list(processes)
    for process in signalled:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    alive = _wait(signalled, seconds=grace_seconds)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(alive, seconds=10)


def _wait(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended; return those that still run."""
    deadline = time.monotonic() + seconds
    alive = [process for process in processes if is_live(process)]
    while alive and time.monotonic() < deadline:
        _, alive = psutil.wait_procs(alive, timeout=0.2)  # collects our ended children, too
        alive = [process for process in alive if is_live(process)]
    return alive
