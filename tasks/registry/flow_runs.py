"""MLflow runs of flow runs, with their reports; the runs of their stages are below them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import Metric, Run, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from stages.runtime.store import Store
from tasks.locks import locked
from tasks.mlflow_pages import run_page
from tasks.registry.experiments import experiment_of
from tasks.registry.mlflow_connection import MlflowConnection, milliseconds, translated
from training_core.names import require_name

NOTE_LENGTH = 8000  # MLflow's limit


@dataclass(frozen=True)
class FlowRun:
    """A run of a flow.

    Attributes:
        id: of the Prefect run; a Retry keeps it.
        flow: the flow's name.
        name: of the run, e.g. `tiny · ppo.kl_coef=0.1`.
        started_at: Unix time.
    """

    id: str
    flow: str
    name: str
    started_at: float


class FlowRuns:
    """The MLflow runs of flow runs.

    Args:
        mlflow: the server.
        store: holds the locks.
    """

    def __init__(self, mlflow: MlflowConnection, store: Store) -> None:
        self.mlflow, self._client, self._store = mlflow, mlflow.client, store
        self._known: dict[tuple[str, str], str] = {}

    @translated
    def run_for(self, lifecycle: str, flow_run: FlowRun) -> str:
        """Return the id of a flow run's MLflow run; create it if there is none.

        Asks the server once per process. A Retry finds the run of the first try.

        Args:
            lifecycle: name of the experiment.
            flow_run: the flow run.
        """
        known = lifecycle, flow_run.id
        if known not in self._known:
            self._known[known] = self._open(lifecycle, flow_run)
        return self._known[known]

    @translated
    def end(self, lifecycle: str, flow_run_id: str, status: str) -> None:
        """End the run of a flow run that has no report, if there is one.

        Args:
            lifecycle: name of the experiment.
            flow_run_id: of the Prefect run.
            status: MLflow's: FINISHED, FAILED or KILLED.
        """
        experiment = experiment_of(self.mlflow, self._store, lifecycle)
        for run in self._find(experiment, flow_run_id):
            self._client.set_terminated(run.info.run_id, status)

    @translated
    def report(
        self,
        lifecycle: str,
        flow_run: FlowRun,
        *,
        page: Path,
        metrics: Mapping[str, float],
        note: str = "",
    ) -> str:
        """Write the report of a completed flow run into its run; a second call replaces it.

        Args:
            lifecycle: name of the experiment.
            flow_run: the flow run.
            page: file of the report.
            metrics: numbers for the comparison of lifecycles.
            note: description of the run, as Markdown.

        Returns:
            The address of the report in MLflow's user interface.
        """
        experiment = experiment_of(self.mlflow, self._store, lifecycle)
        run_id = self._open(lifecycle, flow_run)  # it may have been deleted since it was opened
        now = milliseconds(time.time())
        points = [Metric(name, value, now, 0) for name, value in metrics.items()]
        self._client.log_batch(run_id, points, tags=[RunTag(MLFLOW_RUN_NOTE, note[:NOTE_LENGTH])])
        self._client.log_artifact(run_id, str(page))
        self._client.set_terminated(run_id, "FINISHED", now)
        return run_page(self.mlflow.address, experiment, run_id, page.name)

    def _open(self, lifecycle: str, flow_run: FlowRun) -> str:
        experiment = experiment_of(self.mlflow, self._store, lifecycle)
        place = self._store.root / "registered" / require_name("lifecycle", lifecycle)
        with locked(place / "flow-runs" / require_name("flow run", flow_run.id)):
            found = self._find(experiment, flow_run.id)
            if not found:
                tags = {"kind": "lifecycle", "flow": flow_run.flow, "flow_run_id": flow_run.id}
                start = milliseconds(flow_run.started_at)
                run = self._client.create_run(experiment, start, tags, run_name=flow_run.name)
                return run.info.run_id
        run = found[0].info
        if run.status in ("FAILED", "KILLED"):  # a Retry goes on with it
            self._client.update_run(run.run_id, status="RUNNING")
        return run.run_id

    def _find(self, experiment: str, flow_run_id: str) -> list[Run]:
        """Return the run; if a retried request created two, the first counts."""
        # A stage's run has the tag flow_run_id, too, but another kind.
        where = f"tags.kind = 'lifecycle' and tags.flow_run_id = '{flow_run_id}'"
        return list(
            self._client.search_runs(
                [experiment], where, max_results=1, order_by=["attributes.start_time ASC"]
            )
        )
