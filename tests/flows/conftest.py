"""One real Prefect server and one real MLflow server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    temporary_settings,
)

from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.processes import family_of, stop
from flows.local_services.startup import start_missing
from flows.local_services.state import ServiceRecords, load_records
from tests.tasks.real_services import MlflowServer


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which only Prefect runs, started as `ratchet up` starts it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for variable in (*ADDRESS_VARIABLES.values(), "RATCHET_STORE"):
            patch.delenv(variable, raising=False)
        try:
            records = start_missing(
                home, ServiceRecords(), names=["prefect"], ray_cpus=1, report=lambda *_: None
            )
            assert records.services["prefect"].url
            yield home
        finally:
            for record in load_records(home).services.values():
                stop(family_of(record), grace_seconds=10)


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


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server.uri
    finally:
        server.stop()
