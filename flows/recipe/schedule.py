"""Runs that a schedule created, and when one of them is skipped."""

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
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.runtime import flow_run

from flows.recipe.approval import is_waiting


def reason_to_skip() -> str | None:
    """Return why a run that a schedule created has nothing to do, or None.

    A run that a person started is never skipped, nor is one that has begun before.
    """
    if flow_run.id is None or (flow_run.run_count or 1) > 1:
        return None
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(flow_run.id))
        if not run.auto_scheduled or run.deployment_id is None:
            return None
        if due := later_due(client, run, datetime.now(UTC)):
            return f"missed; the round of {due:%F %H:%M} is due, too"
        if waiting := undecided_round(client, run):
            return (
                f"there is no new champion yet: the candidate of {waiting.name} waits for an "
                f"answer (`ratchet approve {str(waiting.id)[:8]}`)"
            )
    return None


def later_due(client: SyncPrefectClient, run: FlowRun, now: datetime) -> datetime | None:
    """Return when the newest run of the same schedule that waits at `now` was due, if it is later.

    Without a worker, the server's scheduled runs wait, and all of them would start when it is back.
    Each would start from the same champion.

    Args:
        client: of the server.
        run: the flow run that asks.
        now: runs that are due after it do not count.
    """
    if not run.auto_scheduled or run.expected_start_time is None:
        return None
    due = FlowRunFilterNextScheduledStartTime.model_validate({"before_": now})
    times = [
        each.expected_start_time
        for each in _of_its_deployment(client, run, StateType.SCHEDULED, due)
        if each.auto_scheduled and each.expected_start_time
    ]
    return max((time for time in times if time > run.expected_start_time), default=None)


def undecided_round(client: SyncPrefectClient, run: FlowRun) -> FlowRun | None:
    """Return a run of the same deployment and preset whose candidate waits for a person, if any.

    A round that starts meanwhile would improve a champion that may be replaced at any moment.

    Args:
        client: of the server.
        run: the flow run that asks.
    """
    paused = _of_its_deployment(client, run, StateType.PAUSED)
    same_preset = [
        each for each in paused if each.parameters.get("preset") == run.parameters.get("preset")
    ]
    return next(filter(is_waiting, same_preset), None)


def _of_its_deployment(
    client: SyncPrefectClient,
    run: FlowRun,
    state: StateType,
    due: FlowRunFilterNextScheduledStartTime | None = None,
) -> list[FlowRun]:
    """Return the other runs of a run's deployment that are in a state."""
    if run.deployment_id is None:
        return []
    wanted = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])),
        next_scheduled_start_time=due,
    )
    return [each for each in client.read_flow_runs(flow_run_filter=wanted) if each.id != run.id]
