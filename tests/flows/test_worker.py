"""How many flow runs the local worker has at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.runtime import deployment as this_deployment
from prefect.runtime import flow_run

from flows.local_services.definitions import (
    SERVICES,
    Launch,
    LaunchInputs,
    default_worker_limit,
)
from flows.local_services.health import POOL
from flows.local_services.paths import project_root
from flows.local_services.processes import family_of, start, stop
from flows.local_services.state import ServiceRecord, load_records
from tests.flows.waiting import wait_until

pytestmark = pytest.mark.services


@flow
def alone() -> None:
    """Fails if the worker has another run of this deployment, too."""
    with get_client(sync_client=True) as client:
        others = runs_in(client, UUID(this_deployment.id), StateType.PENDING, StateType.RUNNING)
    assert others == {UUID(flow_run.id)}


def runs_in(client: SyncPrefectClient, deployment: UUID, *states: StateType) -> set[UUID]:
    chosen = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))),
    )
    return {run.id for run in client.read_flow_runs(flow_run_filter=chosen)}


def launch_of(home: Path, limit: int) -> Launch:
    order = LaunchInputs(home, load_records(home), ports=(), ray_cpus=1, worker_limit=limit)
    return SERVICES["worker"].launch(order)


@pytest.fixture
def worker_for_one(prefect_home: Path) -> Iterator[None]:
    """The worker that `ratchet up --worker-limit 1` starts."""
    launch, log = launch_of(prefect_home, 1), prefect_home / "worker.log"
    pid, created = start(
        launch.command, environment=launch.environment, folder=launch.folder, log=log
    )
    worker = ServiceRecord(name="worker", url=launch.url, pid=pid, created=created, log=log)
    wait_until(lambda: SERVICES["worker"].is_ready(worker))  # it has made the pool
    yield
    stop(family_of(worker), grace_seconds=10)


@pytest.mark.usefixtures("worker_for_one")
def test_a_worker_starts_no_more_runs_than_its_limit_and_the_others_wait(
    client: SyncPrefectClient,
) -> None:
    root = {"prefect.deployments.steps.set_working_directory": {"directory": str(project_root())}}
    deployment = client.create_deployment(
        client.create_flow(alone),
        "one-at-a-time",
        entrypoint="tests/flows/test_worker.py:alone",
        pull_steps=[root],
        work_pool_name=POOL,
    )
    runs = {client.create_flow_run_from_deployment(deployment).id for _ in range(2)}
    ended = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED)
    wait_until(lambda: runs_in(client, deployment, *ended) == runs)
    states = [client.read_flow_run(run).state for run in runs]
    assert [state.message for state in states if state] == [None, None]
    client.delete_deployment(deployment)


def test_the_limit_grows_with_the_machine_and_is_part_of_the_workers_command(
    prefect_home: Path,
) -> None:
    assert [default_worker_limit(cores) for cores in (1, 2, 4, 64)] == [8, 8, 8, 128]
    assert launch_of(prefect_home, 8).command[-2:] == ("--limit", "8")
