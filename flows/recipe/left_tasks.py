"""Task runs of a process that was killed, which would stay Running for ever."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

_UNFINISHED = [StateType.RUNNING, StateType.PENDING]


def end_left_tasks(client: SyncPrefectClient, run_id: UUID) -> int:
    """Mark the task runs as crashed that an earlier process of a flow run has left unfinished.

    Args:
        client: of the server.
        run_id: a flow run whose present process has not started a task yet.

    Returns:
        Number of such task runs.
    """
    left = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(name=None, type=TaskRunFilterStateType(any_=_UNFINISHED))
        ),
    )
    for task_run in left:
        ended = Crashed(message="The process of the flow run was killed.")
        client.set_task_run_state(task_run.id, ended, force=True)
    return len(left)
