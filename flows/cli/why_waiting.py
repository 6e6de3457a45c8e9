"""Why a run that was created does not begin."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.exceptions import ObjectNotFound


def why_waiting(client: SyncPrefectClient, run: FlowRun) -> str:
    """Return what a person must do so that a run begins; empty if it begins by itself."""
    if run.state is None or not run.state.is_scheduled() or run.deployment_id is None:
        return ""
    if run.next_scheduled_start_time and run.next_scheduled_start_time > datetime.now(UTC):
        return ""
    if run.work_pool_name is None:
        return "Its deployment has no work pool; `ratchet deploy` gives it one"
    return _what_is_missing(client, run.work_pool_name)


def _what_is_missing(client: SyncPrefectClient, pool: str) -> str:
    try:
        is_paused = client.read_work_pool(pool).is_paused
    except ObjectNotFound:
        return f"There is no work pool '{pool}'; `ratchet deploy` creates it"
    if is_paused:
        return f"The work pool '{pool}' is paused; `prefect work-pool resume {pool}`"
    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    if client.read_workers_for_work_pool(pool, worker_filter=online):
        return ""
    return (
        f"No worker polls the work pool '{pool}'; start one with `ratchet up` on this machine, "
        f"or `prefect worker start --pool {pool}`"
    )
