"""`ratchet runs`: the newest runs as a table."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterId
from prefect.client.schemas.objects import FlowRun
from rich.table import Table

from flows.cli.find_runs import newest_runs, short_id
from flows.cli.run_view import FAILED, step_tasks
from flows.cli.session import open_session
from flows.cli.terminal import Terminal
from tasks.formatting import duration

OPEN = ("RUNNING", "PENDING", "SCHEDULED", "PAUSED", "CANCELLING")


def list_runs(limit: int) -> None:
    """Print the newest runs, without those that a schedule will start later.

    Args:
        limit: how many at most.
    """
    with open_session() as session:
        console = Terminal()
        runs = newest_runs(session.client, limit)
        if not runs:
            console.print("there is no run yet; start one with `ratchet run tiny`")
            return
        flows, steps = _flow_names(session.client, runs), _current_steps(session.client, runs)
    table = Table("id", "name", "flow", "state", "started", box=None, padding=(0, 1))
    table.add_column("time", justify="right")
    table.add_column("step")
    for run in runs:
        started = f"{run.start_time.astimezone():%F %H:%M}" if run.start_time else ""
        time = duration(round(run.estimated_run_time.total_seconds())) if run.start_time else ""
        state, step = run.state_name or "unknown", steps.get(run.id, "")
        table.add_row(short_id(run.id), run.name, flows[run.flow_id], state, started, time, step)
    console.print(table)


def _flow_names(client: SyncPrefectClient, runs: list[FlowRun]) -> Mapping[UUID, str]:
    ids = sorted({run.flow_id for run in runs}, key=str)
    found = client.read_flows(flow_filter=FlowFilter(id=FlowFilterId(any_=ids)))
    return {flow.id: flow.name for flow in found}


def _current_steps(client: SyncPrefectClient, runs: list[FlowRun]) -> Mapping[UUID, str]:
    """Return the step that a run does now, or at which it failed, by the id of the run."""
    wanted = [run for run in runs if run.state and not run.state.is_completed()]
    if not wanted:
        return {}
    states = {run.id: (run.state.type.value if run.state else "") for run in wanted}
    found: dict[UUID, str] = {}
    for task in step_tasks(client, [run.id for run in wanted]):
        run_id, state = task.flow_run_id, task.state_type.value if task.state_type else ""
        if run_id is not None and state in (FAILED if states[run_id] in FAILED else OPEN):
            found[run_id] = task.name
    return found
