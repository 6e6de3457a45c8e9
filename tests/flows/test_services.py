from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from flows.cli import services
from flows.local_services.environment import ADDRESS_VARIABLES, TOKEN_VARIABLE
from flows.local_services.http import post_to_prefect
from flows.local_services.paths import project_root
from flows.local_services.processes import family_of, is_live, root_of
from flows.local_services.state import ServiceError, ServiceRecords, load_records
from tests.flows.waiting import wait_until

pytestmark = pytest.mark.services

# A job that leaves a fork server, and a child outside of its session: a plain kill of the process
# group misses both.
JOB_WITH_A_STRAY_CHILD = "python -m stages request.json; setsid sleep 3600 & sleep 3600"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of our own; its path is too long for Ray's sockets, as a user's may be."""
    home = tmp_path / "a-long-name-that-a-socket-has-no-room-for"
    monkeypatch.setenv("RATCHET_HOME", str(home))
    for variable in (*ADDRESS_VARIABLES.values(), "RATCHET_STORE"):
        monkeypatch.delenv(variable, raising=False)
    yield home
    services.down()


@pytest.mark.timeout(600)
def test_services_come_up_once_answer_on_loopback_alone_and_leave_nothing(home: Path) -> None:
    records = services.up()

    wait_until(services.status, seconds=60)  # on a busy machine an answer may take too long once
    assert pids_of(services.up()) == pids_of(records)
    assert pids_of(load_records(home)) == pids_of(records)
    assert all(root_of(record) for record in records.services.values())

    environment = services.service_environment()
    assert environment["RATCHET_STORE"] == str(home / "store")
    assert_prefect_answers(environment["PREFECT_API_URL"])
    assert_mlflow_answers(environment["MLFLOW_TRACKING_URI"])
    assert_foreign_pages_are_refused(environment)
    wait_for_stray_child(environment["RAY_ADDRESS"], records)

    listening = [port for process in processes_of(records) for port in loopback_ports(process)]
    # At least: Prefect, MLflow, and Ray's dashboard, GCS, client server and agent.
    assert len(set(listening)) >= 6

    (ray_folder,) = {each.scratch for each in records.services.values() if each.scratch}
    (socket_of_server,) = (ray_folder / "fork-servers").glob("*.sock")
    assert [each for each in token_holders(records.token) if runs(each, str(socket_of_server))]
    before = processes_of(records)
    services.down()

    assert [process for process in before if is_live(process)] == []
    assert token_holders(records.token) == []
    assert [port for port in set(listening) if is_open(port)] == []
    assert not ray_folder.exists()
    assert not prefect_toml_names(home)
    assert not services.status()


def test_a_team_s_own_server_is_used_and_must_answer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port()}")

    with pytest.raises(ServiceError, match=r"MLFLOW_TRACKING_URI is .* nothing answers there"):
        services.up()

    assert load_records(home).services == {}


# ------------------------------------------------------------------------- what a user would see


def assert_prefect_answers(url: str) -> None:
    pools = post_to_prefect(url, "work_pools/filter", {})
    assert [pool["name"] for pool in pools] == ["ratchet"]


def assert_mlflow_answers(url: str) -> None:
    made = httpx.post(f"{url}/api/2.0/mlflow/experiments/create", json={"name": "probe"})
    assert made.status_code == 200
    found = httpx.get(f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=probe")
    # A file location, so that checkpoints are hard-linked and not uploaded.
    assert urlsplit(found.json()["experiment"]["artifact_location"]).scheme == "file"


def assert_foreign_pages_are_refused(environment: dict[str, str]) -> None:
    """What a browser sends for a page of another site; tests of Prefect are in another file."""
    browser = {"Origin": "https://evil.example", "User-Agent": "Mozilla/5.0"}
    create = f"{environment['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/create"
    assert httpx.post(create, json={"name": "evil"}, headers=browser).status_code == 403
    jobs = f"{environment['RAY_ADDRESS']}/api/jobs/"
    assert httpx.post(jobs, json={"entrypoint": "true"}, headers=browser).status_code == 405


def wait_for_stray_child(url: str, records: ServiceRecords) -> None:
    job = httpx.post(f"{url}/api/jobs/", json={"entrypoint": JOB_WITH_A_STRAY_CHILD})
    assert job.status_code == 200
    wait_until(lambda: len(named(processes_of(records), "sleep")) == 2, seconds=180)


# ------------------------------------------------------------------------- processes and ports


def pids_of(records: ServiceRecords) -> dict[str, int | None]:
    return {name: record.pid for name, record in records.services.items()}


def processes_of(records: ServiceRecords) -> list[psutil.Process]:
    return [each for record in records.services.values() for each in family_of(record)]


def named(processes: list[psutil.Process], name: str) -> list[psutil.Process]:
    return [process for process in processes if is_live(process) and process.name() == name]


def loopback_ports(process: psutil.Process) -> list[int]:
    """The ports that a process listens on; fails on one that other machines can reach."""
    sockets = []
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        sockets = [each for each in process.net_connections("inet") if each.status == "LISTEN"]
    for each in sockets:
        address = ipaddress.ip_address(each.laddr.ip.removeprefix("::ffff:"))
        assert address.is_loopback, (process.cmdline()[:3], each.laddr)
    return [each.laddr.port for each in sockets]


def token_holders(token: str) -> list[int]:
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    holders = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if mark in environment and int(folder.name) != os.getpid():
            holders.append(int(folder.name))
    return holders


def runs(pid: int, argument: str) -> bool:
    return argument in psutil.Process(pid).cmdline()


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def prefect_toml_names(home: Path) -> bool:
    path = project_root() / "prefect.toml"
    return path.exists() and str(home) in path.read_text()
