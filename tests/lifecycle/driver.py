"""Starts and watches flow runs as a person would, over Prefect's API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelling, Scheduled

from stages.attempt import Attempt
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.run_steps import steps_of_run
from tests.flows.waiting import looks
from tests.lifecycle.finished_demo import FinishedDemo

QUICK_ROLLOUTS = {"rollouts": {"engine": "transformers"}}
"""Settings of a stage that samples little: vLLM needs ten seconds to start. The demo uses it."""

FEW_JUDGED = {"evaluation": {"prompts": {"size": 64}, **QUICK_ROLLOUTS}}
"""Overrides for where the evaluation is not the subject."""


class Lifecycle:
    """Running services with a finished `full-rlhf/tiny`, and the hands to do more."""

    def __init__(self, client: SyncPrefectClient, demo: FinishedDemo) -> None:
        self.client = client
        self.demo = demo
        self.environment = demo.environment
        self.store = Store(Path(demo.environment["RATCHET_STORE"]))
        self.started: list[UUID] = []

    def start(self, deployment: str, **parameters: Any) -> UUID:
        """Create a flow run; the parameters are merged into the deployment's."""
        found = self.client.read_deployment_by_name(deployment)
        run = self.client.create_flow_run_from_deployment(found.id, parameters=parameters)
        self.started.append(run.id)
        return run.id

    def end_all(self) -> None:
        """Cancel what a failed test has left, so that the next ones have the machine."""
        while self.started:
            run_id = self.started.pop()
            if not self._is_final(run_id):
                self.cancel(run_id)
                self.wait(run_id)

    @contextmanager
    def on_schedule(self, deployment: str, **parameters: Any) -> Iterator[FlowRun]:
        """Give a deployment a daily schedule whose first run is due soon, and take it away again.

        Yields:
            The first run, which the server's scheduler has created.
        """
        found = self.client.read_deployment_by_name(deployment)
        soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
        daily = IntervalSchedule(interval=timedelta(days=1), anchor_date=soon)
        wanted = DeploymentScheduleUpdate(schedule=daily, active=True, parameters=parameters)
        self.client.update_deployment(found.id, DeploymentUpdate(schedules=[wanted]))
        of_deployment = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[found.id]))

        def first() -> FlowRun | None:
            runs = self.client.read_flow_runs(flow_run_filter=of_deployment)
            return next((run for run in runs if run.expected_start_time == soon), None)

        try:
            yield self.until(first)
        finally:
            self.client.update_deployment(found.id, DeploymentUpdate(schedules=[]))

    def wait(self, run_id: UUID, seconds: float = 280) -> FlowRun:
        """Wait for a terminal state."""
        self.until(lambda: self._is_final(run_id), seconds)
        return self.client.read_flow_run(run_id)

    def run(self, deployment: str, **parameters: Any) -> FlowRun:
        """Start and wait."""
        return self.wait(self.start(deployment, **parameters))

    def until(self, condition: Callable[[], Any], seconds: float = 300) -> Any:
        """Wait until `condition` returns something true, and return that."""
        return next(value for _ in looks(seconds) if (value := condition()))

    def retry(self, run_id: UUID) -> None:
        """Press Retry, as the UI does it."""
        self.until_left(run_id)
        state = Scheduled(name="AwaitingRetry", message="Retry from the UI")
        assert self.client.set_flow_run_state(run_id, state).status.value == "ACCEPT"

    def until_left(self, run_id: UUID) -> None:
        """Wait until the worker has told the end of a failed run's process.

        Prefect's worker proposes Crashed then, which the server takes if the run is no longer
        Failed because a person has pressed Retry.
        """
        begun = self.client.read_flow_run(run_id).run_count
        self.until(lambda: self.log(run_id).count("exited with status code") >= begun)

    def cancel(self, run_id: UUID) -> None:
        """Press Cancel, as the UI does it; a run without a process is Cancelled at once."""
        state = self.client.set_flow_run_state(run_id, Cancelling()).state
        assert state is not None
        assert state.type in (StateType.CANCELLING, StateType.CANCELLED)

    def steps(self, run_id: UUID) -> dict[str, str]:
        """Last state name of each step's task."""
        of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
        tasks: list[TaskRun] = self.client.read_task_runs(flow_run_filter=of_run)
        ordered = sorted(tasks, key=lambda t: str(t.expected_start_time))
        return {
            t.name: str(t.state_name) for t in ordered if " " not in t.name and t.name != "report"
        }

    def says(self, run_id: UUID, text: str) -> bool:
        """Whether the run's log says `text`; waits a little, since logs arrive late."""
        try:
            return bool(self.until(lambda: text in self.log(run_id), seconds=20))
        except TimeoutError:
            return False

    def log(self, run_id: UUID) -> str:
        """Everything that the run has logged so far."""
        only = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
        lines: list[str] = []
        page = self.client.read_logs(only, limit=200)
        while len(page) == 200:
            lines += [entry.message for entry in page]
            page = self.client.read_logs(only, limit=200, offset=len(lines))
        lines += [entry.message for entry in page]
        return "\n".join(lines)

    def attempt(self, run_id: UUID, step: str, name: str = "a1") -> Attempt:
        """An attempt at a step of a run, once its process beats."""

        def find() -> Attempt | None:
            found = steps_of_run(self.store, str(run_id)).get(step)
            attempt = found and self.store.attempt(found.stage, found.key, name)
            return attempt if attempt and attempt.heartbeat.exists() else None

        return self.until(find)

    def manifest_of(self, run_id: UUID, step: str) -> Manifest:
        """Manifest of a step, by the key that the run's summary names."""
        row = self.row(run_id, step)
        manifest = self.store.find(row["stage"], row["key"])
        assert manifest is not None
        return manifest

    def row(self, run_id: UUID, step: str) -> dict[str, Any]:
        """What the run's summary says of a step."""
        return next(r for r in self.summary(run_id)["rows"] if r["step"] == step)

    def summary(self, run_id: UUID) -> dict[str, Any]:
        """What the run's report says, as data."""
        return json.loads((self.store.root / "reports" / str(run_id) / "summary.json").read_text())

    def config_of(self, run_id: UUID) -> dict[str, Any]:
        """The resolved config that a run has kept."""
        plan = self.store.root / "plans" / f"{run_id}.json"
        return json.loads(plan.read_text())["config"]

    def _is_final(self, run_id: UUID) -> bool:
        state = self.client.read_flow_run(run_id).state
        return state is not None and state.is_final()
