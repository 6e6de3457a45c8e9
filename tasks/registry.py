"""The one door to MLflow: runs that mirror a stage's curves, and model versions that people load.

Nothing here is the truth. The store's manifests are, and `Registry.resync` makes all of it again
from them, except the promotions (see `tasks.ledger`). So every method may be called twice, by two
processes at once, or after an outage.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from stages.catalog import find_stage
from stages.files import read_jsonl
from stages.runtime.store import Manifest, Store
from tasks.locks import claim, claimed_step
from tasks.metric_batches import batches
from tasks.versions import (
    MODEL_SUFFIX,
    Entry,
    ModelVersionRef,
    alias_of,
    metrics_of,
    params_of,
    place_files,
    tags_of,
    without_userinfo,
)
from training_core.errors import ConfigError, IntegrityError, TransientError

MIRRORED = "ratchet.mirrored_step"
ATTEMPT = "ratchet.attempt"
BATCH_METRICS = 999  # with the tag, the 1000 entities that MLflow takes in one request
BATCH_PARAMS = 100
DATASET_DIGEST_LENGTH = 36  # MLflow's limit
TOO_MANY_REQUESTS, SERVER_FAULT = 429, 500  # HTTP statuses

# MLflow's own 7 retries hold a caller for four minutes when the server is away; ours are a task's.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

P = ParamSpec("P")
R = TypeVar("R")


def _translated(
    method: Callable[Concatenate[Registry, P], R],
) -> Callable[Concatenate[Registry, P], R]:
    """Raise Ratchet's errors where `method` raises MLflow's."""

    @wraps(method)
    def call(self: Registry, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except MlflowException as error:
            # Not chained: MLflow's own text repeats the address, with the password that is in it.
            status, found = error.get_http_status_code(), without_userinfo(str(error.message))
            if status >= SERVER_FAULT or status == TOO_MANY_REQUESTS:
                raise TransientError(
                    f"expected an MLflow server at {self.address}, found: {found}; "
                    "nothing is lost, try again when it is back"
                ) from None
            raise ConfigError(f"MLflow at {self.address} refuses: {found}") from None

    return call


class Registry:
    """MLflow at `tracking_uri` as the mirror of `store`.

    Every method that talks to the server raises `TransientError` if it cannot be reached, and
    `ConfigError` if it refuses.

    Args:
        tracking_uri: `http://host:port`, or `http://user:password@host:port`; model versions and
            runs live on the same server.
        store: its root must be a path that whoever loads a model sees, too.
    """

    def __init__(self, tracking_uri: str, store: Store) -> None:
        self.tracking_uri = tracking_uri.rstrip("/")
        self.address = without_userinfo(self.tracking_uri)
        self.store = store
        self._client = MlflowClient(self.tracking_uri, self.tracking_uri)

    # ------------------------------------------------------------------------------ runs

    @_translated
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
        """Return the id of an attempt's run in a lifecycle; make it if there is none.

        An attempt that resumes an unfinished one continues its run. A stage that is made anew
        although it was finished has another run, so that its curve is not taken for mirrored.

        Args:
            lifecycle: the experiment; made, too, with its artifacts below the store.
            stage: the stage's name.
            step: its name in the flow, and the run's.
            key: the stage key.
            attempt: name of the attempt's directory.
            started_at: Unix time that a new run begins with; None is now.
        """
        experiment = self._experiment(lifecycle)
        with claim(self.store.root, lifecycle, stage, key, step=step):
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
            start = _milliseconds(time.time() if started_at is None else started_at)
            tags = {"stage_key": key, "stage": stage, "step": step, ATTEMPT: attempt}
            return self._client.create_run(experiment, start, tags, run_name=step).info.run_id

    @_translated
    def mirror_metrics(
        self, run_id: str, metrics_jsonl: Path, *, is_complete: bool = False
    ) -> int | None:
        """Copy what is new in a stage's growing `metrics.jsonl` into its run.

        The tag `ratchet.mirrored_step` travels in the same request as the points up to that step,
        and MLflow drops a point that it has, so an interruption neither loses nor doubles any.

        Args:
            run_id: from `run_for`.
            metrics_jsonl: lines of `{"step", "time", "metrics"}`, steps never decreasing; need not
                exist yet.
            is_complete: the file grows no more. Until then its newest step is held back, because
                another line of that step may follow.

        Returns:
            The last step that the run has; None before the first.
        """
        tags = self._client.get_run(run_id).data.tags
        mirrored = int(tags[MIRRORED]) if MIRRORED in tags else None
        lines = read_jsonl(metrics_jsonl)
        for batch in batches(lines, mirrored, is_complete=is_complete, size=BATCH_METRICS):
            points = [Metric(p.name, p.value, _milliseconds(p.at), p.step) for p in batch.points]
            self._client.log_batch(run_id, points, tags=[RunTag(MIRRORED, str(batch.upto))])
            mirrored = batch.upto
        return mirrored

    @_translated
    def log_report(
        self,
        lifecycle: str,
        flow: str,
        flow_run_id: str,
        *,
        page: Path,
        metrics: Mapping[str, float],
    ) -> str:
        """Put a flow run's report and numbers into its one run; a second call replaces them.

        Args:
            lifecycle: the experiment.
            flow: the flow's name, and the run's.
            flow_run_id: of Prefect; finds the run again.
            page: the report's file.
            metrics: what people compare lifecycles by.

        Returns:
            The address of the report in MLflow's user interface.
        """
        experiment = self._experiment(lifecycle)
        # A stage's run has the tag flow_run_id, too; the kind tells them apart.
        where = f"tags.kind = 'lifecycle' and tags.flow_run_id = '{flow_run_id}'"
        found = self._client.search_runs([experiment], where, max_results=1)
        tags = {"kind": "lifecycle", "flow": flow, "flow_run_id": flow_run_id}
        run = found[0] if found else self._client.create_run(experiment, tags=tags, run_name=flow)
        run_id = run.info.run_id
        now = _milliseconds(time.time())
        self._client.log_batch(run_id, [Metric(k, v, now, 0) for k, v in metrics.items()])
        self._client.log_artifact(run_id, str(page))
        self._client.set_terminated(run_id, "FINISHED", now)
        address = f"{self.address}/#/experiments/{experiment}/runs/{run_id}"
        return f"{address}/artifacts/{page.name}"

    # ------------------------------------------------------------------- model versions

    @_translated
    def register(
        self,
        manifest: Manifest,
        *,
        lifecycle: str,
        step: str | None = None,
        flow_run_id: str | None = None,
        is_candidate: bool = False,
    ) -> ModelVersionRef | None:
        """Make the checkpoint of a finished stage a model version, once, and complete its run.

        Args:
            manifest: of the finished stage.
            lifecycle: `tiny` registers into `tiny.policy` or `tiny.reward-model`.
            step: the stage's name in this lifecycle's flow; its newest version gets it as alias.
                None takes the manifest's, which is that of the flow that asked first.
            flow_run_id: the Prefect run, for a tag of the MLflow run.
            is_candidate: move the alias `candidate` here.

        Returns:
            The version; None for a dataset or an evaluation, which have only a run.

        Raises:
            IntegrityError: if the artifact is not what the manifest says.
            ConfigError: if the step cannot be an alias, or artifacts do not go to a file:// folder.
        """
        step = step or manifest.step
        alias_of(step)
        self.store.verify(manifest)
        start = _started_at(self.store, manifest)
        run_id = self.run_for(
            lifecycle,
            manifest.stage,
            step,
            manifest.key,
            attempt=manifest.attempt,
            started_at=start,
        )
        ref = None
        if manifest.kind in MODEL_SUFFIX:
            ref = self._version_for(manifest, lifecycle, step, run_id)
            self.hold_alias(ref.name, alias_of(ref.step), partial(self._newest, ref.name, ref.step))
            if is_candidate:
                self._client.set_registered_model_alias(ref.name, "candidate", str(ref.version))
        with claim(self.store.root, lifecycle, manifest.stage, manifest.key, step=step):
            self._complete_run(run_id, manifest, flow_run_id)  # reads what is there, then adds
        return ref

    def resync(self, lifecycle: str) -> list[ModelVersionRef]:
        """Register every finished stage that the lifecycle ever asked for, oldest first.

        Raises:
            IntegrityError: naming every artifact that is not what its manifest says; the others are
                registered nevertheless.
        """
        refs, broken = [], []
        for manifest in self.store.manifests():
            step = claimed_step(self.store.root, lifecycle, manifest.stage, manifest.key)
            if step is None:
                continue
            try:
                refs.append(self.register(manifest, lifecycle=lifecycle, step=step))
            except IntegrityError as error:
                broken.append(str(error))
        if broken:
            raise IntegrityError("not registered: " + "; ".join(broken))
        return [ref for ref in refs if ref is not None]

    @_translated
    def resolve(self, reference: str) -> ModelVersionRef:
        """Return the version that `models:/tiny.policy@champion` or `models:/tiny.policy/3` names.

        Raises:
            ConfigError: if there is none; the message lists the aliases and versions there are.
        """
        match = re.fullmatch(r"models:/([^/@:']+)(?:@([\w-]+)|/(\d+))", reference)
        if match is None:
            raise ConfigError(
                f"expected models:/<name>@<alias> or models:/<name>/<version>, found '{reference}'"
            )
        name, alias, number = match.groups()
        aliases = self.aliases(name)
        wanted = aliases.get(alias) if alias else int(number)
        versions = {int(v.version): v for v in self._search(name)}
        if wanted not in versions:
            raise ConfigError(
                f"there is no '{reference}'; {name} has aliases {aliases or 'none'} "
                f"and versions {sorted(versions) or 'none'}"
            )
        return _ref_of(versions[wanted])

    # ---------------------------------------------------------------- aliases and ledgers

    @_translated
    def aliases(self, name: str) -> dict[str, int]:
        """Return the version number of each alias of a registered model; empty if there is none."""
        models = self._client.search_registered_models(f"name = '{name}'")
        return {alias: int(v) for model in models for alias, v in model.aliases.items()}

    @_translated
    def hold_alias(self, name: str, alias: str, wanted: Callable[[], int | None]) -> None:
        """Set an alias until it equals what `wanted` says afterwards.

        MLflow cannot compare and set, so a slower process may overwrite with what was right before;
        it then sees that itself, here, and sets the newer one.
        """
        while (number := wanted()) != self.aliases(name).get(alias):
            if number is None:
                self._client.delete_registered_model_alias(name, alias)
            else:
                self._client.set_registered_model_alias(name, alias, str(number))

    @_translated
    def append(self, name: str, source: str, tags: Mapping[str, str]) -> None:
        """Append an entry to the ledger `name`; the server numbers entries as they come."""
        self._ensure_model(name)
        self._client.create_model_version(name, source, tags=dict(tags), await_creation_for=0)

    @_translated
    def entries(self, name: str) -> list[Entry]:
        """Return the entries of the ledger `name` in their order."""
        return [
            Entry(int(v.version), v.tags, v.creation_timestamp / 1000) for v in self._search(name)
        ]

    # -------------------------------------------------------------------------- pieces

    def _experiment(self, lifecycle: str) -> str:
        found = self._client.get_experiment_by_name(lifecycle)
        if found is None:
            folder = self.store.root.resolve() / "mlflow" / lifecycle
            with _unless_it_exists():
                return self._client.create_experiment(lifecycle, folder.as_uri())
            found = self._client.get_experiment_by_name(lifecycle)
        if found is None or found.lifecycle_stage != "active":
            raise ConfigError(
                f"expected an active MLflow experiment '{lifecycle}', found a deleted one; "
                "restore it in MLflow, or remove it for good with `mlflow gc`"
            )
        return found.experiment_id

    def _version_for(
        self, manifest: Manifest, lifecycle: str, step: str, run_id: str
    ) -> ModelVersionRef:
        name = f"{lifecycle}.{MODEL_SUFFIX[manifest.kind]}"
        artifacts = self._client.get_run(run_id).info.artifact_uri
        # By digest, because a stage whose files were lost may come out differently the second time.
        source = f"{artifacts}/checkpoint/{manifest.digest[:12]}"
        where = f"tags.stage_key = '{manifest.key}' and tags.digest = '{manifest.digest}'"
        with claim(self.store.root, lifecycle, manifest.stage, manifest.key, step=step):
            place_files(manifest, self.store.artifact_dir(manifest), _local_path(source))
            if not self._search(name, where):
                self._ensure_model(name)
                tags = tags_of(manifest, step)
                self._client.create_model_version(name, source, run_id, tags, await_creation_for=0)
            return _ref_of(self._search(name, where)[0])

    def _newest(self, name: str, step: str) -> int:
        return max(int(v.version) for v in self._search(name, f"tags.step = '{step}'"))

    def _search(self, name: str, where: str = "") -> list[ModelVersion]:
        """Return versions in their order; where a retried request made two, the first counts."""
        query = f"name = '{name}'" + (f" and {where}" if where else "")
        found: list[ModelVersion] = []
        token = None
        while True:
            page = self._client.search_model_versions(
                query, order_by=["version_number ASC"], page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    def _ensure_model(self, name: str) -> None:
        if not self._client.search_registered_models(f"name = '{name}'"):
            with _unless_it_exists():
                self._client.create_registered_model(name)

    def _complete_run(self, run_id: str, manifest: Manifest, flow_run_id: str | None) -> None:
        curve = self.store.attempt_of(manifest).metrics
        self.mirror_metrics(run_id, curve, is_complete=True)
        known = self._client.get_run(run_id).data.params
        params = [Param(k, v) for k, v in params_of(manifest).items() if k not in known]
        for start in range(0, len(params), BATCH_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + BATCH_PARAMS])
        end = _milliseconds(manifest.finished_at)
        final = [Metric(f"final/{k}", v, end, 0) for k, v in manifest.metrics.items()]
        tags = {"kind": manifest.kind, "digest": manifest.digest}
        tags |= {"flow_run_id": flow_run_id} if flow_run_id else {}
        self._client.log_batch(run_id, final, tags=[RunTag(k, v) for k, v in tags.items()])
        if datasets := _datasets(manifest):
            self._client.log_inputs(run_id, datasets=datasets)
        self._client.set_terminated(run_id, "FINISHED", end)


@contextmanager
def _unless_it_exists() -> Iterator[None]:
    """Ignore that another process made the same thing first."""
    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _ref_of(version: ModelVersion) -> ModelVersionRef:
    needed = {"stage", "step", "stage_key", "digest"}
    if missing := needed - version.tags.keys():
        raise ConfigError(
            f"models:/{version.name}/{version.version} was not registered by Ratchet: "
            f"expected the tags {sorted(needed)}, found none of {sorted(missing)}"
        )
    return ModelVersionRef(
        name=version.name,
        version=int(version.version),
        run_id=version.run_id or "",
        path=_local_path(version.source or ""),
        metrics=metrics_of(version.tags),
        **{name: version.tags[name] for name in needed},
    )


def _local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigError(
            f"expected artifacts in a file:// folder, found {uri}; "
            "give the lifecycle another name, so that Ratchet makes its MLflow experiment itself"
        )
    return Path(unquote(parts.path))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _started_at(store: Store, manifest: Manifest) -> float:
    lines = read_jsonl(store.attempt_of(manifest).metrics)
    return lines[0]["time"] if lines else manifest.finished_at


def _datasets(manifest: Manifest) -> list[DatasetInput]:
    """What the stage read that is no model: outputs of parents, files that its config names."""
    spec = find_stage(manifest.stage)
    return [
        DatasetInput(Dataset(role, digest[:DATASET_DIGEST_LENGTH], "ratchet", json.dumps(digest)))
        for role, digest in manifest.input_digests.items()
        if spec.kind_of(role) in (None, "dataset")
    ]
