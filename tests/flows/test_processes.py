"""The processes of local services, with real ones."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.local_services.processes import family_of, listens, start, stop
from flows.local_services.records import ServiceRecord


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


def test_a_service_whose_port_a_stranger_took_does_not_listen(run, port):
    server = run("-m", "http.server", "--bind", "127.0.0.1", str(port))
    loser = run("-c", "import time; time.sleep(60)")
    deadline = time.monotonic() + 20
    while not listens(server):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not listens(loser)
