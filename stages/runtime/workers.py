"""One stage as several processes: start them, stop them, and return one exit code.

Each worker is `python -m stages request.json` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT in its environment. If one fails, the others are stopped.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from stages.configs.block import ResourcesConfig
from stages.runtime.exit_codes import ExitCode, ending_of
from stages.runtime.worker_processes import IN_RAY_JOB, LocalWorkerGroup, WorkerGroup

log = logging.getLogger("ratchet")

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Time in which the others may end by themselves after the first failure."""


def run_workers(request: Path, resources: ResourcesConfig, stop: threading.Event) -> int:
    """Run the stage of `request` on `resources.num_workers` processes.

    Args:
        request: file for `python -m stages`.
        resources: number of workers, and the resources of each.
        stop: set when the workers must save and end.

    Returns:
        0 if all are done, else the exit code of the worker that failed.
    """
    if os.environ.get(IN_RAY_JOB):
        from stages.runtime.ray_workers import RayWorkerGroup

        group: WorkerGroup = RayWorkerGroup(request, resources, stop)
    else:
        group = LocalWorkerGroup(request, resources.num_workers)
    try:
        return supervise(group, stop)
    finally:
        group.close()


def supervise(group: WorkerGroup, stop: threading.Event) -> int:
    """Wait until all workers are done, or the first has failed."""
    is_told = False
    while True:
        codes = group.poll()
        if all(code == 0 for code in codes):
            return ExitCode.DONE
        if any(codes):  # one that is neither None nor 0
            return _failure(group)
        if stop.is_set() and not is_told:
            log.info("telling the workers to stop")
            group.send(signal.SIGTERM)
            is_told = True
        time.sleep(POLL_SECONDS)


def _failure(group: WorkerGroup) -> int:
    deadline = time.monotonic() + GRACE_SECONDS
    while None in group.poll() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    codes = group.poll()
    log.error("exit codes of the workers: %s (None: still running, now killed)", list(codes))
    return exit_code_of(codes)


def exit_code_of(codes: Sequence[int | None]) -> int:
    """Find the cause among exit codes: a worker that lost another one ends as TRANSIENT.

    Args:
        codes: exit code of every worker.

    Returns:
        The first code that states the cause, else that of the first killed worker as in a shell
        (128 + signal), else the remaining code.
    """
    failed = [code for code in codes if code]
    endings = [ending_of(code) for code in failed]
    known = [int(e.code) for e in endings if e is not None and not e.may_be_an_echo]
    killed = [128 - code for code in failed if code < 0]
    return (known or killed or failed)[0]
