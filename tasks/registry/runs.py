"""MLflow runs: one per stage of a lifecycle, with its curves, and one per flow run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag

from stages.catalog import find_stage
from stages.files import read_jsonl
from stages.runtime.store import Manifest, Store
from tasks.locks import claim
from tasks.metric_batches import batches
from tasks.registry.mlflow_connection import (
    MlflowConnection,
    milliseconds,
    translated,
    unless_it_exists,
)
from tasks.versions import params_of
from training_core.errors import ConfigError

MIRRORED = "ratchet.mirrored_step"
ATTEMPT = "ratchet.attempt"
BATCH_METRICS = 999  # and one tag: MLflow accepts 1000 entities in one request
BATCH_PARAMS = 100
DATASET_DIGEST_LENGTH = 36  # MLflow's limit


class Runs:
    """The runs of a server.

    Args:
        mlflow: the server.
        store: source of the curves.
    """

    def __init__(self, mlflow: MlflowConnection, store: Store) -> None:
        self.mlflow, self._client, self._store = mlflow, mlflow.client, store

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
        """
        experiment = self._experiment(lifecycle)
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
    def log_report(
        self,
        lifecycle: str,
        flow: str,
        flow_run_id: str,
        *,
        page: Path,
        metrics: Mapping[str, float],
    ) -> str:
        """Write a flow run's report and metrics into its run; a second call replaces them.

        Args:
            lifecycle: name of the experiment.
            flow: name of the flow, and of the run.
            flow_run_id: id of the Prefect run; identifies the MLflow run.
            page: file of the report.
            metrics: numbers for the comparison of lifecycles.

        Returns:
            The address of the report in MLflow's user interface.
        """
        experiment = self._experiment(lifecycle)
        # A stage's run has the tag flow_run_id, too, but another kind.
        where = f"tags.kind = 'lifecycle' and tags.flow_run_id = '{flow_run_id}'"
        found = self._client.search_runs([experiment], where, max_results=1)
        tags = {"kind": "lifecycle", "flow": flow, "flow_run_id": flow_run_id}
        run = found[0] if found else self._client.create_run(experiment, tags=tags, run_name=flow)
        run_id = run.info.run_id
        now = milliseconds(time.time())
        self._client.log_batch(run_id, [Metric(k, v, now, 0) for k, v in metrics.items()])
        self._client.log_artifact(run_id, str(page))
        self._client.set_terminated(run_id, "FINISHED", now)
        address = f"{self.mlflow.address}/#/experiments/{experiment}/runs/{run_id}"
        return f"{address}/artifacts/{page.name}"

    @translated
    def complete(self, run_id: str, manifest: Manifest, flow_run_id: str | None) -> None:
        """Write parameters, metrics and tags of a finished stage into its run, and end the run.

        Args:
            run_id: from `run_for`.
            manifest: manifest of the stage.
            flow_run_id: id of the Prefect run, for a tag; None keeps the present tag.
        """
        curve = self._store.attempt_of(manifest).metrics
        self.mirror_metrics(run_id, curve, is_complete=True)
        known = self._client.get_run(run_id).data.params
        params = [Param(k, v) for k, v in params_of(manifest).items() if k not in known]
        for start in range(0, len(params), BATCH_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + BATCH_PARAMS])
        end = milliseconds(manifest.finished_at)
        final = [Metric(f"final/{k}", v, end, 0) for k, v in manifest.metrics.items()]
        tags = {"kind": manifest.kind, "digest": manifest.digest}
        tags |= {"flow_run_id": flow_run_id} if flow_run_id else {}
        self._client.log_batch(run_id, final, tags=[RunTag(k, v) for k, v in tags.items()])
        if datasets := _datasets(manifest):
            self._client.log_inputs(run_id, datasets=datasets)
        self._client.set_terminated(run_id, "FINISHED", end)

    def _experiment(self, lifecycle: str) -> str:
        found = self._client.get_experiment_by_name(lifecycle)
        if found is None:
            folder = self._store.root.resolve() / "mlflow" / lifecycle
            with unless_it_exists():
                return self._client.create_experiment(lifecycle, folder.as_uri())
            found = self._client.get_experiment_by_name(lifecycle)
        if found is None or found.lifecycle_stage != "active":
            raise ConfigError(
                f"expected an active MLflow experiment '{lifecycle}', found a deleted one; "
                "restore it in MLflow, or remove it for good with `mlflow gc`"
            )
        return found.experiment_id


def _datasets(manifest: Manifest) -> list[DatasetInput]:
    """Return the stage's inputs except models: outputs of other stages, and files of its config."""
    spec = find_stage(manifest.stage)
    return [
        DatasetInput(Dataset(role, digest[:DATASET_DIGEST_LENGTH], "ratchet", json.dumps(digest)))
        for role, digest in manifest.input_digests.items()
        if spec.kind_of(role) in (None, "dataset")
    ]
