"""One real Prefect server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    temporary_settings,
)
from typer.testing import CliRunner, Result

from flows.cli import watch_run
from flows.cli.main import app
from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.state import load_records
from stages.runtime.store import Store
from tasks.connections import Connections, connect
from tests.flows.only_prefect import only_prefect
from tests.tasks.real_services import MlflowServer


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which only Prefect runs, started as `ratchet up` starts it."""
    home = tmp_path_factory.mktemp("home")
    with only_prefect(home):
        yield home


@pytest.fixture
def client(prefect_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    """A client of the server; flows that a test calls report there, too."""
    url = load_records(prefect_home).services["prefect"].url
    for variable in (*ADDRESS_VARIABLES.values(), "RATCHET_STORE"):
        monkeypatch.delenv(variable, raising=False)
    settings = {
        PREFECT_API_URL: url,
        PREFECT_HOME: prefect_home / "client",
        PREFECT_CLIENT_MAX_RETRIES: 3,
    }
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def mlflow_uri(mlflow_server: MlflowServer) -> str:
    return mlflow_server.uri


@pytest.fixture
def connections(
    client: SyncPrefectClient, mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Connections:
    """A store of the test's own, the MLflow server, and no Ray; flows that it calls use them."""
    del client  # first, since it deletes these variables
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # nobody answers there
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    return connect()


@pytest.fixture
def ratchet(
    client: SyncPrefectClient, prefect_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Types a command in a shell of the server's home; its output is wide enough for any line."""
    del client  # its settings are those of the server
    monkeypatch.setenv("RATCHET_HOME", str(prefect_home))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(watch_run, "REFRESH_SECONDS", 0.3)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def home_store(prefect_home: Path) -> Store:
    """Finished stages of that server's home."""
    return Store(prefect_home / "store")


@pytest.fixture
def run_name() -> str:
    """A name that no other run of this server has."""
    return f"run-{uuid4().hex[:8]}"
