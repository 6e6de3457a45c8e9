"""`ratchet down`, step by step: the processes, their remains and, with `--purge`, the state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from flows.local_services.draining import crash_flow_runs, stop_ray_jobs
from flows.local_services.processes import family_of, orphans_of, root_of, stop
from flows.local_services.state import (
    ServiceRecord,
    ServiceRecords,
    lock_path,
    records_path,
)

# The worker first, so that no flow starts a job while jobs are stopped; the servers last, because
# all others report to them.
_ROUNDS = ((("worker",), 20.0), (("ray",), 10.0), (("mlflow", "prefect"), 10.0))
_JOB_GRACE_SECONDS = 35.0  # RAY_JOB_STOP_WAIT_TIME_S, after which Ray kills a job, plus a margin


def stop_supervisor(records: ServiceRecords) -> None:
    """Stop the supervisor, and not its children: those are services that it has started again."""
    supervisor = records.services.get("supervisor")
    if supervisor and (root := root_of(supervisor)):
        stop([root], grace_seconds=5)


def stop_services(records: ServiceRecords, *, report: Callable[[str, str], None]) -> ServiceRecords:
    """Stop every process that `up` started, and all their children.

    Args:
        records: the running services.
        report: called with a service's name and its activity.

    Returns:
        The records with the addresses, so that the next start uses them again.
    """
    ours = {name: each for name, each in records.services.items() if not each.is_external}
    stop_supervisor(records)
    report("supervisor", "down")
    for names, grace_seconds in _ROUNDS:
        together = [ours[name] for name in names if name in ours]
        for record in together:
            report(record.name, "stopping")
        _stop_round(together, records, grace_seconds)
        for record in together:
            report(record.name, "down")
    stop(orphans_of(records.token), grace_seconds=10)
    for record in ours.values():
        if record.scratch is not None:
            shutil.rmtree(record.scratch, ignore_errors=True)
    stopped = {name: record.stopped() for name, record in ours.items()}
    return records.model_copy(update={"services": stopped})


def _stop_round(
    together: list[ServiceRecord], records: ServiceRecords, grace_seconds: float
) -> None:
    for record in together:
        if record.name == "ray" and root_of(record):
            stop_ray_jobs(record, grace_seconds=_JOB_GRACE_SECONDS)
    families = {record.name: family_of(record) for record in together}
    stop(chain.from_iterable(families.values()), grace_seconds=grace_seconds)
    if worker := families.get("worker"):
        crash_flow_runs(records.services["prefect"], pids={each.pid for each in worker})


def purge(home: Path) -> None:
    """Delete all that `up` created in home, and home itself if it is then empty.

    Other files in home stay, because the user may have chosen a folder with other content.
    """
    for name in ("prefect", "mlflow", "ray", "logs", "store"):
        _delete(home / name)
    records_path(home).unlink(missing_ok=True)
    lock_path(home).unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        home.rmdir()


def _delete(folder: Path) -> None:
    """Delete a folder in which finished artifacts, and their folders, are read-only."""
    if not folder.is_dir():
        return
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
