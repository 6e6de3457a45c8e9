"""One stage as several processes: start them, tell them to stop, and say how they ended.

Each worker is `python -m stages request.json` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT in its environment. They live and die together.
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
"""How long the others may take to end by themselves after the first one ended badly."""


def run_workers(request: Path, resources: ResourcesConfig, stop: threading.Event) -> int:
    """Run the stage of `request` on `resources.num_workers` processes.

    Args:
        request: for `python -m stages`.
        resources: of each worker.
        stop: set when the workers are to save and leave.

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
    endings = [ending_of(code) for code in failed]
    known = [int(e.code) for e in endings if e is not None and not e.may_be_an_echo]
    killed = [128 - code for code in failed if code < 0]
    return (known or killed or failed)[0]
