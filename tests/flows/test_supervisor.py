"""The supervisor of `ratchet up`: what ends is started again, with a small real server."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.cli.services import state_of
from flows.local_services import definitions, startup, supervisor
from flows.local_services.definitions import Launch, LaunchInputs, Service
from flows.local_services.environment import SERVICE_VARIABLE, TOKEN_VARIABLE
from flows.local_services.http import request
from flows.local_services.processes import (
    family_of,
    flow_processes,
    is_live,
    orphans_of,
    remains_of,
    root_of,
    stop,
)
from flows.local_services.state import ServiceRecord, ServiceRecords, load_records, save_records
from flows.local_services.supervisor import PAUSES_SECONDS, Supervisor, due_at
from stages.runtime.worker_processes import IN_RAY_JOB
from tests.flows.waiting import wait_until

SERVER = """
import os, subprocess, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler as Page
sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeping)
subprocess.Popen(sleeping, env={**os.environ, "RATCHET_IN_RAY_JOB": "1"})
HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""
"""A service with two children: one of its own, and a stage that it has started."""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def it(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ServiceRecord]]:
    """Start a Python program as the only service of a home."""
    program = tmp_path / "program.py"
    home = tmp_path / "home"

    def launch(order: LaunchInputs) -> Launch:
        command = (sys.executable, str(program), str(order.ports[0]))
        environment = {TOKEN_VARIABLE: order.records.token, "PATH": os.environ["PATH"]}
        return Launch(command, environment, tmp_path, f"http://127.0.0.1:{order.ports[0]}")

    service = Service("it", "It", (port,), launch, lambda r: request("GET", r.url) is not None)
    for module in (startup, supervisor, definitions):
        monkeypatch.setattr(module, "SERVICES", {"it": service})

    def begin(text: str) -> ServiceRecord:
        program.write_text(text)
        home.mkdir()
        records = startup.start_missing(
            home,
            ServiceRecords(),
            names=["it"],
            ray_cpus=1,
            worker_limit=1,
            report=lambda *_: None,
        )
        save_records(home, records)
        return records.services["it"]

    yield begin
    records = load_records(home)
    stop([*orphans_of(records.token), *family_of(records.services["it"])], grace_seconds=5)


def kill(record: ServiceRecord) -> None:
    assert record.pid
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: root_of(record) is None)


def test_a_killed_service_is_back_at_its_address_and_leaves_only_its_stages(it, tmp_path):
    first = it(SERVER)
    token = load_records(tmp_path / "home").token
    wait_until(lambda: len(orphans_of(token)) == 3)
    kill(first)
    stage, child = sorted(orphans_of(token), key=lambda each: IN_RAY_JOB not in each.environ())
    assert remains_of("it", token) == [child]
    assert child.environ()[SERVICE_VARIABLE] == "it"

    Supervisor(tmp_path / "home").look()

    second = load_records(tmp_path / "home").services["it"]
    assert second.pid != first.pid
    assert second.url == first.url
    assert request("GET", second.url) is not None
    assert len(second.restarts) == 1
    assert not is_live(child)
    assert is_live(stage)


def test_a_service_that_lives_is_left_alone(it, tmp_path):
    record = it(SERVER)
    Supervisor(tmp_path / "home").look()
    assert load_records(tmp_path / "home").services["it"] == record


def test_a_service_that_cannot_start_is_given_up_and_status_says_so(
    it, tmp_path, monkeypatch, caplog
):
    record = it(SERVER)
    (tmp_path / "program.py").write_text("raise SystemExit('no such database')")
    kill(record)
    monkeypatch.setattr(supervisor, "LIMIT", 2)
    monkeypatch.setattr(supervisor, "PAUSES_SECONDS", (0.0,))
    watcher = Supervisor(tmp_path / "home")
    for _ in range(4):
        watcher.look()
    given_up = load_records(tmp_path / "home").services["it"]
    assert given_up.is_given_up
    assert len(given_up.restarts) == 2
    assert caplog.text.count("It ended while it started") == 2
    assert caplog.text.count("is given up; its log is") == 1
    state = state_of(supervisor.SERVICES["it"], given_up)
    assert state == "dead; not started again after 2 tries, see its log"


def test_a_service_that_was_stopped_stays_stopped(it, tmp_path):
    record = it(SERVER)
    records = load_records(tmp_path / "home")
    save_records(tmp_path / "home", records.with_record(record.stopped()))
    kill(record)
    Supervisor(tmp_path / "home").look()
    assert load_records(tmp_path / "home").services["it"].pid is None


def test_a_service_that_does_not_answer_is_stopped_and_started_again(it, tmp_path, monkeypatch):
    record = it(SERVER)
    monkeypatch.setattr(supervisor, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "RUNS_SECONDS", 0.0)
    watcher = Supervisor(tmp_path / "home")
    watcher.look()
    os.kill(record.pid, signal.SIGSTOP)
    watcher.look()
    watcher.look()
    again = load_records(tmp_path / "home").services["it"]
    assert again.pid != record.pid
    assert request("GET", again.url) is not None


def test_each_restart_waits_longer_than_the_one_before():
    now = time.time()
    record = ServiceRecord(name="it", url="", pid=1)
    assert due_at(record) == 0
    for number in (1, 2, 3, 20):
        restarted = record.model_copy(update={"restarts": (now,) * number})
        pause = PAUSES_SECONDS[min(number, len(PAUSES_SECONDS) - 1)]
        assert due_at(restarted) == now + pause
    long_ago = record.model_copy(update={"restarts": (now - supervisor.WINDOW_SECONDS,) * 20})
    assert due_at(long_ago) == 0
    assert list(PAUSES_SECONDS) == sorted(PAUSES_SECONDS)


def test_the_process_of_a_flow_run_is_found_by_the_run(tmp_path):
    environment = {"PREFECT__FLOW_RUN_ID": f"run-{os.getpid()}"}
    pid, created = startup.start(
        (sys.executable, "-c", "import time; time.sleep(600)"),
        environment=environment,
        folder=tmp_path,
        log=tmp_path / "log",
    )
    record = ServiceRecord(name="flow", url="", pid=pid, created=created)
    wait_until(lambda: f"run-{os.getpid()}" in flow_processes())
    assert [each.pid for each in flow_processes()[f"run-{os.getpid()}"]] == [pid]
    stop(family_of(record), grace_seconds=5)
    assert f"run-{os.getpid()}" not in flow_processes()
