"""A home in which only Prefect runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.processes import family_of, stop
from flows.local_services.startup import start_missing
from flows.local_services.state import ServiceRecords, load_records


@contextmanager
def only_prefect(home: Path) -> Iterator[None]:
    """Start Prefect in `home` as `ratchet up` starts it, and stop it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in (*ADDRESS_VARIABLES.values(), "RATCHET_STORE"):
            patch.delenv(variable, raising=False)
        forget_server()
        try:
            records = start_missing(
                home,
                ServiceRecords(),
                names=["prefect"],
                ray_cpus=1,
                worker_limit=1,
                report=lambda *_: None,
            )
            assert records.services["prefect"].url
            yield
        finally:
            forget_server()
            for record in load_records(home).services.values():
                stop(family_of(record), grace_seconds=10)


def forget_server() -> None:
    """Send what waits, and let what comes later be sent to the server that is then in use.

    A process has one sender of events, which tell a server of tasks. It stays with the server of
    the first one: without this, tasks of flows that a test calls would be unknown to the next.
    A sender of logs would try for minutes to reach a server that has been stopped.
    """
    for sender in (EventsWorker, APILogWorker):
        sender.drain_all(timeout=60)
