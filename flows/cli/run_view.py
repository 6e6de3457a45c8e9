"""What a flow run does now: its state, and the state of each step that it has begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, TaskRun

from flows.cli.find_runs import PAGE
from flows.cli.session import Session
from flows.cli.why_waiting import why_waiting
from flows.recipe.approval import is_waiting
from tasks.follow import StepProgress, read_progress
from tasks.run_steps import RunStep, attempt_of_step, steps_of_run
from tasks.stage_task import stage_task

STAGE_TASK = f"{stage_task.fn.__name__}-"
"""How Prefect's keys of the task begin; a digest of its code follows."""

FAILED = ("FAILED", "CRASHED")


@dataclass(frozen=True)
class StepView:
    """A step that a run has begun.

    Attributes:
        name: its name in the flow.
        state: name of its state in Prefect, e.g. `Running` or `Reused`.
        is_running: whether it runs now.
        has_failed: whether it has failed or crashed.
        seconds: how long this run has worked on it.
        message: why it is in this state, as Prefect tells it.
        result: what it improved, in words; empty until it is finished.
        version: number of its model in the registry.
        log: of the newest attempt, while it runs or if it has failed; None before it is written.
        progress: of the running attempt.
    """

    name: str
    state: str
    is_running: bool
    has_failed: bool
    seconds: float
    message: str = ""
    result: str = ""
    version: int | None = None
    log: Path | None = None
    progress: StepProgress | None = None


@dataclass(frozen=True)
class RunView:
    """A flow run: its steps in the order of their starts.

    Attributes:
        run: as Prefect knows it.
        steps: those that it has begun.
        waits_for: why it does not begin, and what helps; empty if it needs nobody.
    """

    run: FlowRun
    steps: tuple[StepView, ...]
    waits_for: str = ""

    @property
    def state(self) -> str:
        """Name of the run's state."""
        return self.run.state_name or "unknown"

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.run.state is not None and self.run.state.is_final()

    @property
    def hint(self) -> str:
        """What a person must do for the run to go on; empty if nothing."""
        if not is_waiting(self.run):
            return self.waits_for
        return (
            f"It waits for a person: ratchet approve {str(self.run.id)[:8]} --name NAME "
            "--reason REASON (--hold, --reject)"
        )


def view_of(session: Session, run_id: UUID) -> RunView:
    """Ask Prefect for the states and the store for results and progress.

    Raises:
        IntegrityError: if a file of the store is not what it should be.
    """
    run = session.client.read_flow_run(run_id)
    known = steps_of_run(session.store, str(run_id))
    tasks = step_tasks(session.client, [run_id])
    steps = tuple(_step_view(session, task, known.get(task.name)) for task in tasks)
    return RunView(run, steps, why_waiting(session.client, run))


def step_tasks(client: SyncPrefectClient, run_ids: Sequence[UUID]) -> list[TaskRun]:
    """Return the newest task run of each step of flow runs, in the order of their starts.

    Other tasks, e.g. `register sft` and `report`, take no time and are left out.
    """
    of_runs = FlowRunFilter(id=FlowRunFilterId(any_=list(run_ids)))
    found: list[TaskRun] = []
    page = client.read_task_runs(flow_run_filter=of_runs, limit=PAGE)
    while len(page) == PAGE:
        found += page
        page = client.read_task_runs(flow_run_filter=of_runs, limit=PAGE, offset=len(found))
    found += page
    ordered = sorted(found, key=lambda task: str(task.start_time))
    newest = {(task.flow_run_id, task.name): task for task in ordered if _is_step(task)}
    return list(newest.values())


def _is_step(task: TaskRun) -> bool:
    """Whether it is the task of a stage, and has started: before that it has a made-up name."""
    return task.task_key.startswith(STAGE_TASK) and task.start_time is not None


def _step_view(session: Session, task: TaskRun, step: RunStep | None) -> StepView:
    state = task.state
    is_running = state is not None and state.is_running()
    has_failed = state is not None and state.type.value in FAILED
    # A finished step may have been reused, and then its log is that of another run.
    has_log = step is not None and (is_running or has_failed)
    attempt = attempt_of_step(session.store, step) if step and has_log else None
    return StepView(
        name=task.name,
        state=task.state_name or "unknown",
        is_running=is_running,
        has_failed=has_failed,
        seconds=task.estimated_run_time.total_seconds(),
        message=(state.message or "") if state else "",
        result=step.result if step else "",
        version=step.version if step else None,
        log=attempt.log if attempt and attempt.log.exists() else None,
        progress=read_progress(attempt.progress) if attempt and is_running else None,
    )
