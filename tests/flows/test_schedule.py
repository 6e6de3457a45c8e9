"""What a real Prefect server does with a schedule, and which of the missed runs is done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule

from flows.recipe.round_id import SCHEDULED
from flows.recipe.schedule import later_due
from tests.flows.waiting import wait_until

pytestmark = pytest.mark.services


@flow
def rounds() -> None:
    """Is never run, as if the worker were away."""


def test_of_missed_runs_only_the_last_is_done(client: SyncPrefectClient) -> None:
    often = DeploymentScheduleCreate(
        schedule=IntervalSchedule(interval=timedelta(seconds=1)), active=True
    )
    deployment = client.create_deployment(client.create_flow(rounds), "often", schedules=[often])
    of_deployment = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))

    def missed(now: datetime) -> list[FlowRun]:
        runs = [r for r in client.read_flow_runs(flow_run_filter=of_deployment) if r.auto_scheduled]
        due = [run for run in runs if run.expected_start_time and run.expected_start_time < now]
        return sorted(due, key=lambda run: str(run.expected_start_time))

    wait_until(lambda: len(missed(datetime.now(UTC))) >= 3)
    now = datetime.now(UTC)
    runs = missed(now)
    times = [run.expected_start_time for run in runs]
    assert all(SCHEDULED in run.tags for run in runs)  # by which a round gets its date
    assert [later_due(client, run, now) for run in runs[:-1]] == [times[-1]] * (len(runs) - 1)
    assert later_due(client, runs[-1], now) is None
    by_hand = client.create_flow_run_from_deployment(deployment)
    assert later_due(client, by_hand, now) is None
    client.delete_deployment(deployment)
