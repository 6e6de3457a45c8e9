"""Flow runs and steps in a real Prefect server that no process does: a test sets their states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Completed, Running

from flows.full_rlhf import full_rlhf
from stages.attempt import Attempt
from stages.runtime.store import Store
from tasks.run_steps import RunStep, note_step
from tasks.stage_task import stage_task


def make_run(client: SyncPrefectClient, name: str, state: State | None = None) -> FlowRun:
    """Create a run of the flow full-rlhf in a state; it runs if none is given."""
    run = client.create_flow_run(full_rlhf, parameters={}, name=name)
    client.set_flow_run_state(run.id, Running(), force=True)
    if state is not None:
        client.set_flow_run_state(run.id, state, force=True)
    return client.read_flow_run(run.id)


def make_step(
    client: SyncPrefectClient, run_id: UUID, name: str, state: State | None = None
) -> UUID:
    """Create the task of a step, which has started and then got another state."""
    task = client.create_task_run(
        stage_task, flow_run_id=run_id, dynamic_key=name, name=name, state=Running()
    )
    if state is not None:
        client.set_task_run_state(task.id, state, force=True)
    return task.id


def make_attempt(store: Store, run: UUID, step: str, **known: Any) -> Attempt:
    """Note that a run does a step, with an attempt that has written a log."""
    key = f"{run.hex}-{step}"
    note_step(store, str(run), RunStep(step=step, stage="sft", key=key, **known))
    attempt = store.attempt("sft", key, "a1")
    attempt.directory.mkdir(parents=True, exist_ok=True)
    attempt.log.write_text(f"first line of {step}\n")
    return attempt


def finish_step(client: SyncPrefectClient, store: Store, run: UUID, step: str) -> None:
    """Create a step that is finished."""
    make_step(client, run, step, Completed())
    make_attempt(store, run, step, version=3, result="loss 2 → 1", seconds=4.0)


def write_summary(store: Store, run: UUID) -> Path:
    """Write what the report of a finished lifecycle says."""
    row = {"step": "sft", "stage": "sft", "key": "0123", "version": 3}
    path = store.root / "reports" / str(run) / "summary.json"
    path.parent.mkdir(parents=True)
    summary = {
        "lifecycle": "tiny",
        "rows": [{**row, "result": "loss 2 → 1", "seconds": 4.0, "reused": False}],
        "is_champion": False,
        "decision": "hold",
        "verdict": "it is not proven better than the champion: expected win rate above 0.5",
        "report": None,
        "report_file": str(path.with_name("report.html")),
    }
    path.write_text(json.dumps(summary))
    return path


def deploy_flow(client: SyncPrefectClient, name: str, pool: str | None = None) -> UUID:
    """Create a deployment of the flow full-rlhf, which no worker polls."""
    flow_id = client.create_flow(full_rlhf)
    return client.create_deployment(
        flow_id,
        name,
        parameters={"preset": name},
        entrypoint="flows/full_rlhf.py:full_rlhf",
        enforce_parameter_schema=False,
        work_pool_name=pool,
    )
