"""MLflow runs of stages, each with its curves, below the run of the flow run that made it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from stages.files import read_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.locks import claim
from tasks.metric_batches import batches
from tasks.mlflow_pages import run_page
from tasks.registry.experiments import experiment_of
from tasks.registry.flow_runs import FlowRun, FlowRuns
from tasks.registry.mlflow_connection import MlflowConnection, milliseconds, translated
from tasks.registry.run_inputs import datasets_of
from tasks.versions import params_of

MIRRORED = "ratchet.mirrored_step"
ATTEMPT = "ratchet.attempt"
BATCH_METRICS = 999  # and one tag: MLflow accepts 1000 entities in one request
BATCH_PARAMS = 100


class Runs:
    """MLflow runs of stages: creates them and copies curves into them.

    Args:
        mlflow: the server.
        store: source of the curves.
        flow_runs: the runs above them.
    """

    def __init__(self, mlflow: MlflowConnection, store: Store, flow_runs: FlowRuns) -> None:
        self.mlflow, self._client, self._store = mlflow, mlflow.client, store
        self._flow_runs = flow_runs

    @translated
    def run_for(
        self,
        lifecycle: str,
        stage: str,
        step: str,
        key: str,
        *,
        attempt: str,
        started_at: float | None = None,
        flow_run: FlowRun | None = None,
    ) -> str:
        """Return the id of an attempt's run in a lifecycle; create it if there is none.

        An attempt that resumes an unfinished attempt continues its run. A finished stage that runs
        again gets a new run, because its new curve must be copied, too.

        Args:
            lifecycle: name of the experiment; created if missing, with its artifacts in the store.
            stage: name of the stage.
            step: name of the stage in the flow, and of the run.
            key: the stage key.
            attempt: name of the attempt's directory.
            started_at: Unix time of the start of a new run; None means now.
            flow_run: a new run is placed below its run; None places it below none.
        """
        experiment = experiment_of(self.mlflow, self._store, lifecycle)
        with claim(self._store.root, lifecycle, stage, key, step=step):
            runs = self._client.search_runs(
                [experiment],
                f"tags.stage_key = '{key}'",
                order_by=["attributes.start_time DESC"],
            )
            for run in runs:
                if run.data.tags.get(ATTEMPT) == attempt:
                    return run.info.run_id
            if runs and runs[0].info.status != "FINISHED":
                self._client.set_tag(runs[0].info.run_id, ATTEMPT, attempt)
                return runs[0].info.run_id
            start = milliseconds(time.time() if started_at is None else started_at)
            tags = {"stage_key": key, "stage": stage, "step": step, ATTEMPT: attempt}
            if flow_run is not None:
                tags["flow_run_id"] = flow_run.id
                tags[MLFLOW_PARENT_RUN_ID] = self._flow_runs.run_for(lifecycle, flow_run)
            return self._client.create_run(experiment, start, tags, run_name=step).info.run_id

    @translated
    def mirror_metrics(
        self, run_id: str, metrics_jsonl: Path, *, is_complete: bool = False
    ) -> int | None:
        """Copy the new lines of a stage's growing `metrics.jsonl` into its run.

        The tag `ratchet.mirrored_step` is sent in the same request as the points up to that step,
        and MLflow ignores duplicates. So an interruption neither loses nor duplicates points.

        Args:
            run_id: from `run_for`.
            metrics_jsonl: lines of `{"step", "time", "metrics"}`; steps never decrease. The file
                may not exist yet.
            is_complete: whether the file is complete. If not, its newest step is not copied yet,
                because another line of that step may follow.

        Returns:
            The last copied step; None if there is none.
        """
        tags = self._client.get_run(run_id).data.tags
        mirrored = int(tags[MIRRORED]) if MIRRORED in tags else None
        lines = read_jsonl(metrics_jsonl)
        for batch in batches(lines, mirrored, is_complete=is_complete, size=BATCH_METRICS):
            points = [Metric(p.name, p.value, milliseconds(p.at), p.step) for p in batch.points]
            self._client.log_batch(run_id, points, tags=[RunTag(MIRRORED, str(batch.upto))])
            mirrored = batch.upto
        return mirrored

    @translated
    def pages(self, lifecycle: str, run_ids: Mapping[str, str]) -> dict[str, str]:
        """Return the address of each run's page in MLflow's user interface; `run_ids` by step."""
        experiment = experiment_of(self.mlflow, self._store, lifecycle)
        return {k: run_page(self.mlflow.address, experiment, run) for k, run in run_ids.items()}

    @translated
    def is_complete(self, run_id: str, manifest: Manifest) -> bool:
        """Return whether `complete` has written this result into the run, and nobody deleted it."""
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        is_there = run.info.lifecycle_stage == "active" and run.info.status == "FINISHED"
        return is_there and run.data.tags.get("digest") == manifest.digest

    @translated
    def complete(self, run_id: str, manifest: Manifest, note: str) -> None:
        """Write what a finished stage had and made into its run, and end the run.

        Args:
            run_id: from `run_for`.
            manifest: manifest of the stage.
            note: description of the run, as Markdown.
        """
        curve = self._store.attempt_of(manifest).metrics
        self.mirror_metrics(run_id, curve, is_complete=True)
        known = self._client.get_run(run_id).data
        params = [Param(k, v) for k, v in params_of(manifest).items() if k not in known.params]
        for start in range(0, len(params), BATCH_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + BATCH_PARAMS])
        end = milliseconds(manifest.finished_at)
        final = {f"final/{name}": value for name, value in manifest.metrics.items()}
        cost = {f"cost/{name}": value for name, value in manifest.cost.items()}
        checks = {f"canary/{canary.name}": canary.found for canary in manifest.canaries}
        points = [Metric(name, value, end, 0) for name, value in (final | cost | checks).items()]
        tags = {"kind": manifest.kind, "digest": manifest.digest, MLFLOW_RUN_NOTE: note}
        self._client.log_batch(run_id, points, tags=[RunTag(k, v) for k, v in tags.items()])
        if datasets := datasets_of(manifest):
            self._client.log_inputs(run_id, datasets=datasets)
        self._client.set_terminated(run_id, "FINISHED", end)
