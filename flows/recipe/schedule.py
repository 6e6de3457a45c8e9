"""Runs that a schedule created: after an outage only the last of those that were missed is done."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run


def later_round_due() -> datetime | None:
    """Return when the newest scheduled run was due that makes this one superfluous, or None.

    Without a worker, the server's scheduled runs wait, and all of them would start when it is back.
    Each would start from the same champion. A run that a person started is never superfluous, nor
    is one that has begun before.
    """
    if flow_run.id is None or (flow_run.run_count or 1) > 1:
        return None
    with get_client(sync_client=True) as client:
        return later_due(client, UUID(flow_run.id), datetime.now(UTC))


def later_due(client: SyncPrefectClient, run_id: UUID, now: datetime) -> datetime | None:
    """Return when the newest run of the same schedule that waits at `now` was due, if it is later.

    Args:
        client: of the server.
        run_id: the flow run that asks.
        now: runs that are due after it do not count.
    """
    run = client.read_flow_run(run_id)
    if not run.auto_scheduled or run.deployment_id is None or run.expected_start_time is None:
        return None
    due = FlowRunFilterNextScheduledStartTime.model_validate({"before_": now})
    waiting = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=due,
        )
    )
    times = [
        each.expected_start_time
        for each in waiting
        if each.auto_scheduled and each.expected_start_time and each.id != run.id
    ]
    return max((time for time in times if time > run.expected_start_time), default=None)
