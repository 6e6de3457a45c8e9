"""What a cancelled flow run does with the jobs that it started.

    python -m flows.recipe.cancellation <flow run>

does the same for a run whose worker is gone, and marks it Cancelled.
"""

from __future__ import annotations

import sys
from uuid import UUID

from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from flows.recipe.flow_end import end_run_in_mlflow
from flows.recipe.left_tasks import end_left_tasks
from tasks.connections import connect
from tasks.submission import stop_abandoned


def stop_jobs(flow: Flow[..., object], flow_run: FlowRun, state: State[object]) -> None:
    """Stop the jobs of a cancelled flow run that no other run waits for.

    Prefect passes these by keyword.
    """
    del flow, state
    with get_client(sync_client=True) as client:
        _stop_jobs_of(str(flow_run.id), client)


def _stop_jobs_of(run_id: str, client: SyncPrefectClient) -> None:
    connections = connect()
    stop_abandoned(
        connections.store,
        connections.cluster,
        run_id,
        lambda other: is_going_on(client, other),
    )


def is_going_on(client: SyncPrefectClient, run_id: str) -> bool:
    """Whether a flow run may still want its jobs; False for one that Prefect does not know."""
    try:
        state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return False
    return state is None or not (state.is_final() or state.is_cancelling())


def main() -> None:
    """Cancel the flow run of the command line, which has no process any more."""
    (run_id,) = sys.argv[1:]
    with get_client(sync_client=True) as client:
        _stop_jobs_of(run_id, client)
        end_left_tasks(client, UUID(run_id))
        state = Cancelled(message="Its worker was gone; Ratchet has stopped its jobs.")
        client.set_flow_run_state(UUID(run_id), state, force=True)
    end_run_in_mlflow(run_id, state.type)


if __name__ == "__main__":
    main()
