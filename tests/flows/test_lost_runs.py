"""What the supervisor does on a real Prefect server with runs whose worker is gone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Cancelling, Pending, Running
from prefect.workers.process import ProcessWorker

from flows.cli.automations import crashed_runs_resume
from flows.local_services.health import POOL
from flows.local_services.lost_runs import AUTO_RESUME_TAG, LostRuns
from flows.local_services.processes import family_of, root_of, start, stop
from flows.local_services.state import ServiceRecord, ServiceRecords, load_records
from flows.recipe.left_tasks import end_left_tasks
from tests.flows.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


@flow
def nothing() -> None:
    """Is never run."""


@task
def step() -> None:
    """Is never run, either."""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Callable[..., ServiceRecord]]:
    """Start a process that does nothing, in the place of a worker or a flow."""
    made: list[ServiceRecord] = []

    def begin(name: str, **environment: str) -> ServiceRecord:
        pid, created = start(
            (sys.executable, "-c", "import time; time.sleep(600)"),
            environment={**os.environ, **environment},
            folder=tmp_path,
            log=tmp_path / "log",
        )
        made.append(ServiceRecord(name=name, url="", pid=pid, created=created))
        return made[-1]

    yield begin
    for record in made:
        stop(family_of(record), grace_seconds=5)


@pytest.fixture
def records(prefect_home: Path, client: SyncPrefectClient) -> ServiceRecords:
    """The server with a pool; Ray and MLflow are elsewhere, and nobody asks them."""
    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=POOL, type="process", base_job_template=template)
    with suppress(ObjectAlreadyExists):  # another test has made it
        client.create_work_pool(pool)
    found = load_records(prefect_home)
    for name in ("ray", "mlflow"):
        url = "http://127.0.0.1:1"
        found = found.with_record(ServiceRecord(name=name, url=url, is_external=True))
    return found


def begin(client: SyncPrefectClient, *tags: str, is_pending: bool = False) -> UUID:
    deployment = client.create_deployment(client.create_flow(nothing), "lost", work_pool_name=POOL)
    run = client.create_flow_run_from_deployment(deployment, tags=tags)
    client.set_flow_run_state(run.id, Pending() if is_pending else Running(), force=True)
    return run.id


def names_of(client: SyncPrefectClient, run: UUID) -> list[str | None]:
    states = client.read_flow_run_states(run)
    return [state.name for state in sorted(states, key=lambda state: state.timestamp)]


@pytest.fixture
def with_automation(client: SyncPrefectClient) -> Iterator[UUID]:
    """The automation that resumes; here it is only looked at."""
    present = client.read_automations_by_name(crashed_runs_resume().name)
    found = present[0].id if present else client.create_automation(crashed_runs_resume())
    yield found
    client.delete_automation(found)


def test_runs_of_a_worker_that_is_gone_crash_and_those_that_want_it_are_resumed(
    client, records, sleeper, prefect_home, with_automation
):
    plain, wanted = begin(client), begin(client, AUTO_RESUME_TAG)
    pending = begin(client, AUTO_RESUME_TAG, is_pending=True)
    alive = begin(client, AUTO_RESUME_TAG)
    sleeper("flow", PREFECT__FLOW_RUN_ID=str(alive))
    now = records.with_record(worker := sleeper("worker"))
    wait_until(lambda: time.time() > worker.created + 2)  # a worker needs as long to import
    of_this_worker = begin(client, AUTO_RESUME_TAG)

    LostRuns(prefect_home).look(now)

    assert names_of(client, plain)[-2:] == ["Running", "Crashed"]
    assert names_of(client, wanted)[-3:] == ["Running", "Crashed", "AwaitingRetry"]
    assert names_of(client, pending)[-3:] == ["Pending", "Crashed", "AwaitingRetry"]
    for run in (alive, of_this_worker):
        assert client.read_flow_run(run).state_name == "Running"

    client.pause_automation(with_automation)
    unwanted = begin(client, AUTO_RESUME_TAG)
    LostRuns(prefect_home).look(records.with_record(sleeper("worker")))
    assert client.read_flow_run(unwanted).state_name == "Crashed"
    for run in (wanted, pending, alive, of_this_worker):
        client.delete_flow_run(run)


def test_a_cancelled_run_whose_worker_is_gone_ends_and_its_process_too(
    client, records, sleeper, prefect_home
):
    orphan, without = begin(client), begin(client)
    process = sleeper("flow", PREFECT__FLOW_RUN_ID=str(orphan))
    for run in (orphan, without):
        client.set_flow_run_state(run, Cancelling())
    now = records.with_record(sleeper("worker"))

    LostRuns(prefect_home).look(now)

    wait_until(lambda: client.read_flow_run(orphan).state_name == "Cancelled")
    wait_until(lambda: client.read_flow_run(without).state_name == "Cancelled")
    assert root_of(process) is None


def test_a_run_that_its_own_worker_cancels_is_left_to_it(client, records, sleeper, prefect_home):
    now = records.with_record(worker := sleeper("worker"))
    wait_until(lambda: time.time() > worker.created + 2)
    run = begin(client)
    client.set_flow_run_state(run, Cancelling())
    LostRuns(prefect_home).look(now)
    assert client.read_flow_run(run).state_name == "Cancelling"
    client.delete_flow_run(run)


def test_tasks_of_a_killed_process_do_not_stay_running(client):
    run = begin(client)
    left = client.create_task_run(task=step, flow_run_id=run, dynamic_key="1", state=Running())
    other = client.create_task_run(
        task=step, flow_run_id=begin(client), dynamic_key="1", state=Running()
    )
    assert end_left_tasks(client, run) == 1
    assert client.read_task_run(left.id).state_name == "Crashed"
    assert client.read_task_run(other.id).state_name == "Running"
    assert end_left_tasks(client, run) == 0
