"""A password in an address is shown to nobody, and stored only where nobody else reads it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import services
from flows.cli.deploy import deploy
from flows.cli.main import app
from flows.local_services import startup
from flows.local_services.definitions import SERVICES
from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.paths import log_path
from flows.local_services.processes import family_of, start, stop
from flows.local_services.state import (
    ServiceError,
    ServiceRecord,
    ServiceRecords,
    load_records,
    records_path,
    save_records,
)

LOGIN = "ann:s3cret@"
AWAY = f"http://{LOGIN}127.0.0.1:1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that uses servers of a team, which do not answer."""
    for variable in (*ADDRESS_VARIABLES.values(), "RATCHET_STORE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    records = ServiceRecords()
    for name in ADDRESS_VARIABLES:
        url = f"{AWAY}/api" if name == "prefect" else AWAY
        records = records.with_record(ServiceRecord(name=name, url=url, is_external=True))
    save_records(tmp_path, records)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_services_json_keeps_addresses_and_only_the_user_reads_it(home):
    assert load_records(home).services["ray"].url == AWAY
    assert mode(records_path(home)) == 0o600
    records_path(home).chmod(0o644)  # as an earlier version wrote it
    save_records(home, load_records(home))
    assert mode(records_path(home)) == 0o600


def test_only_the_user_reads_the_log_of_a_service(tmp_path):
    log = log_path(tmp_path, "it")
    log.parent.mkdir()
    log.touch(mode=0o644)
    pid, created = start((sys.executable, "-c", ""), environment={}, folder=tmp_path, log=log)
    stop(family_of(ServiceRecord(name="it", url="", pid=pid, created=created)), grace_seconds=5)
    assert mode(log) == 0o600


@pytest.mark.usefixtures("home")
def test_status_shows_the_pages_without_a_login(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 1
    assert result.output.count("http://127.0.0.1:1 ") == 2  # of Prefect the page, not the API
    assert "http://127.0.0.1:1/#/models?workflowType=machine_learning" in result.output
    assert "s3cret" not in result.output


@pytest.mark.usefixtures("home")
def test_env_alone_prints_the_whole_address():
    assert services.service_environment()["RAY_ADDRESS"] == AWAY
    assert f"export MLFLOW_TRACKING_URI={AWAY}\n" in CliRunner().invoke(app, ["env"]).output


@pytest.mark.parametrize("url", [AWAY, f"postgresql://{LOGIN}db/x", "http://ann:s3/cret@host"])
@pytest.mark.parametrize("variable", ADDRESS_VARIABLES.values())
def test_a_server_that_cannot_be_used_is_named_without_a_login(monkeypatch, variable, url):
    for other in ADDRESS_VARIABLES.values():
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, url)
    with pytest.raises(ServiceError, match=variable) as raised:
        startup.adopt_external(ServiceRecords())
    assert "s3cret" not in str(raised.value)
    assert "cret@" not in str(raised.value)


def test_a_server_that_runs_here_already_is_named_without_a_login(monkeypatch, home, tmp_path):
    log = tmp_path / "log"
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    pid, created = start(command, environment={}, folder=tmp_path, log=log)
    ours = ServiceRecord(name="ray", url="http://127.0.0.1:2", pid=pid, created=created)
    monkeypatch.setenv("RAY_ADDRESS", AWAY)
    try:
        with pytest.raises(ServiceError, match="runs its own Ray") as raised:
            startup.adopt_external(load_records(home).with_record(ours))
    finally:
        stop(family_of(ours), grace_seconds=5)
    assert "s3cret" not in str(raised.value)


def test_the_log_of_a_service_that_ended_is_shown_without_a_login(tmp_path):
    log = tmp_path / "log"
    log.write_text(f"cannot reach {AWAY}\n")
    record = ServiceRecord(name="worker", url=AWAY, log=log)
    error = startup._failure(record, SERVICES["worker"], "ended while it started")
    assert "cannot reach http://127.0.0.1:1" in str(error)
    assert "s3cret" not in str(error)


def test_deploying_names_a_server_that_is_away_without_a_login(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", AWAY)
    with pytest.raises(ServiceError, match="no Prefect server answers at") as raised:
        deploy(tmp_path)
    assert "s3cret" not in str(raised.value)


@pytest.mark.services
def test_the_words_of_prefect_deploy_are_shown_without_a_login(
    client, prefect_home, tmp_path, monkeypatch
):
    del client
    (tmp_path / "yaml.py").write_text(f"raise ImportError('away: {AWAY}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # Prefect's command finds it first
    with pytest.raises(ServiceError, match="ended with 1; ") as raised:
        deploy(prefect_home)
    assert "away: http://127.0.0.1:1" in str(raised.value)
    assert "s3cret" not in str(raised.value)
