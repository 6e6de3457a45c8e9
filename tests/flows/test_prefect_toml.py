"""`prefect.toml` in the project: whose it is, and who may write or delete it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import psutil
import pytest

from flows.local_services import prefect_toml
from flows.local_services.prefect_toml import forget_prefect_of, point_prefect_at
from flows.local_services.state import ServiceRecord, ServiceRecords, save_records

FIRST, SECOND = "http://127.0.0.1:4200/api", "http://127.0.0.1:4300/api"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prefect_toml, "work_folder", lambda: tmp_path)
    return tmp_path / "prefect.toml"


def url_in(file: Path) -> str:
    return tomllib.loads(file.read_text())["api"]["url"]


def home_with_server(home: Path, *, pid: int) -> Path:
    record = ServiceRecord(
        name="prefect", url=FIRST, pid=pid, created=psutil.Process(pid).create_time()
    )
    home.mkdir()
    save_records(home, ServiceRecords(services={"prefect": record}))
    return home


def test_a_home_writes_updates_and_deletes_its_own_file(file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert point_prefect_at(home, FIRST)
    assert url_in(file) == FIRST
    assert point_prefect_at(home, SECOND)
    assert url_in(file) == SECOND
    forget_prefect_of(tmp_path / "another")
    assert file.exists()
    forget_prefect_of(home)
    assert not file.exists()


@pytest.mark.parametrize("written", ["", "[api]\nurl = 'http://team/api'\n"])
def test_a_file_of_the_user_stays(file: Path, tmp_path: Path, written: str) -> None:
    file.write_text(written)
    assert not point_prefect_at(tmp_path / "home", FIRST)
    forget_prefect_of(tmp_path / "home")
    assert file.read_text() == written


def test_the_file_of_a_home_that_runs_stays_and_of_one_that_ended_is_replaced(
    file: Path, tmp_path: Path
) -> None:
    running = home_with_server(tmp_path / "running", pid=psutil.Process().pid)
    assert point_prefect_at(running, FIRST)
    assert not point_prefect_at(tmp_path / "other", SECOND)
    assert url_in(file) == FIRST
    save_records(running, ServiceRecords())
    assert point_prefect_at(tmp_path / "other", SECOND)
    assert url_in(file) == SECOND
