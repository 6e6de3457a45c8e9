"""How local services are started, with a small real server."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.local_services import startup
from flows.local_services.definitions import SERVICES, Launch, LaunchInputs, Service
from flows.local_services.http import request
from flows.local_services.processes import family_of, listens, start, stop
from flows.local_services.state import ServiceError, ServiceRecord, ServiceRecords
from stages.runtime.forked_stage import FOLDER_VARIABLE


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def run(tmp_path: Path, port: int) -> Iterator[Callable[..., ServiceRecord]]:
    """Start `python …` as a service that should answer at the port: `run("-m", "http.server")`."""
    records: list[ServiceRecord] = []

    def run(*arguments: str) -> ServiceRecord:
        pid, created = start(
            (sys.executable, *arguments), environment={}, folder=tmp_path, log=tmp_path / "log"
        )
        url = f"http://127.0.0.1:{port}/api"
        records.append(ServiceRecord(name="it", url=url, ports=(port,), pid=pid, created=created))
        return records[-1]

    yield run
    for record in records:
        stop(family_of(record), grace_seconds=5)


def serve(port: int) -> tuple[str, ...]:
    return ("-m", "http.server", "--bind", "127.0.0.1", str(port))


def wait_until_it_listens(server: ServiceRecord) -> None:
    deadline = time.monotonic() + 20
    while not listens(server):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_service_whose_port_a_stranger_took_does_not_listen(run, port):
    server = run(*serve(port))
    loser = run("-c", "import time; time.sleep(60)")
    wait_until_it_listens(server)
    assert not listens(loser)


@pytest.fixture
def start_it(tmp_path: Path, port: int, monkeypatch) -> Iterator[Callable[..., ServiceRecords]]:
    """Bring up a service at the port, with something done after its port was chosen."""
    started: list[ServiceRecords] = []

    def start_it(before: Callable[[], None], command: Callable[[int], tuple[str, ...]]):
        def launch(order: LaunchInputs) -> Launch:
            before()
            (chosen,) = order.ports
            full = (sys.executable, *command(chosen))
            return Launch(full, {}, tmp_path, f"http://127.0.0.1:{chosen}")

        service = Service("it", "It", (port,), launch, lambda r: request("GET", r.url) is not None)
        monkeypatch.setitem(startup.SERVICES, "it", service)
        started.append(
            startup.start_missing(
                tmp_path,
                ServiceRecords(),
                names=["it"],
                ray_cpus=1,
                worker_limit=1,
                report=lambda *_: None,
            )
        )
        return started[-1]

    yield start_it
    for records in started:
        stop(family_of(records.services["it"]), grace_seconds=5)


def test_a_service_that_loses_its_port_at_the_last_moment_starts_at_another(run, start_it, port):
    strangers: list[ServiceRecord] = []

    def take_the_port() -> None:
        if not strangers:
            strangers.append(run(*serve(port)))
            wait_until_it_listens(strangers[0])

    record = start_it(take_the_port, serve).services["it"]
    assert record.ports != (port,)
    assert listens(record)
    assert listens(strangers[0])


def test_a_service_that_ends_for_another_reason_is_not_started_again(start_it):
    tries: list[int] = []
    with pytest.raises(ServiceError, match="It ended while it started"):
        start_it(lambda: tries.append(1), lambda _: ("-c", "raise SystemExit(3)"))
    assert len(tries) == 1


def test_stages_of_the_local_ray_are_forked_unless_the_user_says_no(tmp_path, monkeypatch):
    def folder() -> str:
        order = LaunchInputs(tmp_path, ServiceRecords(), (1, 2, 3, 4), ray_cpus=1, worker_limit=1)
        launch = SERVICES["ray"].launch(order)
        if launch.scratch:
            launch.scratch.rmdir()
        return launch.environment[FOLDER_VARIABLE]

    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert folder().endswith("/fork-servers")
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert folder() == ""
