"""The process of `ratchet up` that starts services again when they end, and looks after lost runs.

    python -m flows.local_services.supervisor

It acts on what `services.json` says should run, and ends when that no longer names it.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from flows.local_services.definitions import SERVICES
from flows.local_services.lost_runs import LostRuns
from flows.local_services.paths import home_folder
from flows.local_services.processes import family_of, root_of, stop
from flows.local_services.startup import start_missing
from flows.local_services.state import (
    ServiceError,
    ServiceRecord,
    ServiceRecords,
    exclusive,
    load_records,
    save_records,
)

LOOK_SECONDS = 1.0
"""Time between two looks at the processes, i.e. how late an end is noticed."""
RUNS_SECONDS = 5.0
"""Time between two looks at the runs of the Prefect server."""
SILENCE_SECONDS = 120.0
"""A process that lives is stopped and started again after this time without an answer."""
PAUSES_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Pause before the first restart, the second, and so on; the last one holds for all others."""
LIMIT = 10
"""A service is given up when it ends after so many restarts within `WINDOW_SECONDS`."""
WINDOW_SECONDS = 600.0

log = logging.getLogger("ratchet.supervisor")


class Supervisor:
    """Looks at the services of a home, again and again.

    Args:
        home: the folder of all state.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._answered: dict[tuple[str, float | None], float] = {}
        self._runs = LostRuns(home)
        self._next_runs = 0.0

    def look(self) -> None:
        """Start what has ended; look at silent services and lost runs less often."""
        records = load_records(self._home)
        lost = [record for record in _kept_up(records) if root_of(record) is None]
        if lost:
            self._restart(lost)
        elif time.monotonic() > self._next_runs:
            self._stop_silent(records)
            self._runs.look(records)
            self._next_runs = time.monotonic() + RUNS_SECONDS

    def _restart(self, lost: list[ServiceRecord]) -> None:
        due = [record for record in lost if time.time() >= due_at(record)]
        if not due:
            return
        with exclusive(self._home):
            records = load_records(self._home)
            due = [r for r in due if records.services.get(r.name) == r]  # `up` may have been faster
            due = self._without_hopeless(due)
            if due:
                self._start_again(due)

    def _without_hopeless(self, due: list[ServiceRecord]) -> list[ServiceRecord]:
        hopeful = []
        for record in due:
            if len(_recent(record)) < LIMIT:
                hopeful.append(record)
                continue
            log.error(
                "%s has ended %d times within %.0f minutes and is given up; its log is %s; correct "
                "the cause and run `ratchet up`",
                *(record.name, LIMIT + 1, WINDOW_SECONDS / 60, record.log),
            )
            self._note(record.name, {"is_given_up": True})
        return hopeful

    def _start_again(self, lost: list[ServiceRecord]) -> None:
        """Start services, and with them the worker if the address of a server has changed."""
        began, names = time.monotonic(), [record.name for record in lost]
        for record in lost:
            log.warning("%s has ended (pid %s); starting it again", record.name, record.pid)
        records = load_records(self._home)
        worker = records.services.get("worker")
        follows = worker and root_of(worker) and "worker" not in names
        try:
            start_missing(
                self._home,
                records,
                names=[*names, "worker"] if follows else names,
                ray_cpus=_limit_of(records, "ray"),
                worker_limit=_limit_of(records, "worker"),
                report=lambda *_: None,
            )
            log.warning("%s: up after %.1f s", ", ".join(names), time.monotonic() - began)
        except ServiceError as error:
            log.error("%s", error)
        for record in lost:
            self._note(record.name, {"restarts": (*_recent(record), time.time())})

    def _note(self, name: str, fields: dict[str, object]) -> None:
        records = load_records(self._home)
        changed = records.services[name].model_copy(update=fields)
        save_records(self._home, records.with_record(changed))

    def _stop_silent(self, records: ServiceRecords) -> None:
        """Stop a service that has answered before and no longer does; the next look starts it."""
        for record in _kept_up(records):
            who, now = (record.name, record.created), time.monotonic()
            if SERVICES[record.name].is_ready(record):
                self._answered[who] = now
            elif now - self._answered.setdefault(who, now) > SILENCE_SECONDS:
                log.warning("%s has not answered for %.0f s", record.name, SILENCE_SECONDS)
                stop(family_of(record), grace_seconds=10)


def due_at(record: ServiceRecord) -> float:
    """Return the Unix time from which a service that has ended may be started again."""
    recent = _recent(record)
    pause = PAUSES_SECONDS[min(len(recent), len(PAUSES_SECONDS) - 1)]
    return recent[-1] + pause if recent else 0.0


def _recent(record: ServiceRecord) -> tuple[float, ...]:
    return tuple(at for at in record.restarts if at > time.time() - WINDOW_SECONDS)


def _kept_up(records: ServiceRecords) -> list[ServiceRecord]:
    """Return the services of this machine that should run, in the order in which they start."""
    known = [records.services[name] for name in SERVICES if name in records.services]
    return [
        record
        for record in known
        if record.name != "supervisor" and record.pid is not None and not record.is_given_up
    ]


def _limit_of(records: ServiceRecords, name: str) -> int:
    record = records.services.get(name)
    return (record and record.limit) or os.cpu_count() or 1


def main() -> None:
    """Supervise the home of this process until another process, or none, is recorded for it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    home = home_folder()
    supervisor = Supervisor(home)
    with exclusive(home):  # until the `ratchet up` that has started this process ends
        pass
    while (own := load_records(home).services.get("supervisor")) and own.pid == os.getpid():
        try:
            supervisor.look()
        except ServiceError as error:
            log.error("%s", error)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
