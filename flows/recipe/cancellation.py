"""What a cancelled flow run does with the jobs that it started."""

from __future__ import annotations

from uuid import UUID

from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from tasks.connections import connect
from tasks.submission import stop_abandoned


def stop_jobs(flow: Flow[..., object], flow_run: FlowRun, state: State[object]) -> None:
    """Stop the jobs of a cancelled flow run that no other run waits for.

    Prefect passes these by keyword.
    """
    del flow, state
    connections = connect()
    with get_client(sync_client=True) as client:
        stop_abandoned(
            connections.store,
            connections.cluster,
            str(flow_run.id),
            lambda other: is_going_on(client, other),
        )


def is_going_on(client: SyncPrefectClient, run_id: str) -> bool:
    """Whether a flow run may still want its jobs; False for one that Prefect does not know."""
    try:
        state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return False
    return state is None or not (state.is_final() or state.is_cancelling())
