"""The registry: copies finished stages of the store to MLflow, as runs and model versions."""

from __future__ import annotations

from functools import partial

from stages.files import read_jsonl
from stages.runtime.store import Manifest, Store
from tasks.locks import claim, claimed_step
from tasks.registry.mlflow_connection import MlflowConnection
from tasks.registry.registered_models import RegisteredModels
from tasks.registry.runs import Runs
from tasks.versions import MODEL_SUFFIX, ModelVersionRef, alias_of
from training_core.errors import IntegrityError


class Registry:
    """A copy of `store` in the MLflow server at `tracking_uri`.

    Args:
        tracking_uri: `http://host:port`, or `http://user:password@host:port`; model versions and
            runs are on the same server.
        store: its root must be a path that is valid for everyone who loads a model.

    Attributes:
        runs: of stages and flows, with their curves.
        models: registered models with versions, aliases and ledgers.
    """

    def __init__(self, tracking_uri: str, store: Store) -> None:
        self.mlflow = MlflowConnection(tracking_uri)
        self.store = store
        self.runs = Runs(self.mlflow, store)
        self.models = RegisteredModels(self.mlflow, store)

    def register(
        self,
        manifest: Manifest,
        *,
        lifecycle: str,
        step: str | None = None,
        flow_run_id: str | None = None,
        is_candidate: bool = False,
    ) -> ModelVersionRef | None:
        """Register the model of a finished stage as a version, once, and complete its run.

        Args:
            manifest: manifest of the finished stage.
            lifecycle: e.g. `tiny`; registers in `tiny.policy` or `tiny.reward-model`.
            step: name of the stage in this lifecycle's flow; the alias of its newest version. None
                uses the step of the manifest, i.e. of the first flow that requested the stage.
            flow_run_id: id of the Prefect run, for a tag of the MLflow run.
            is_candidate: move the alias `candidate` to this version.

        Returns:
            The version; None for a dataset or an evaluation, which have only a run.

        Raises:
            IntegrityError: if the artifact differs from the manifest.
            ConfigError: if the step cannot be an alias, or MLflow's artifacts are not in a file://
                folder.
        """
        step = step or manifest.step
        alias_of(step)
        self.store.verify(manifest)
        start = _started_at(self.store, manifest)
        run_id = self.runs.run_for(
            lifecycle,
            manifest.stage,
            step,
            manifest.key,
            attempt=manifest.attempt,
            started_at=start,
        )
        ref = None
        if manifest.kind in MODEL_SUFFIX:
            ref = self.models.find_or_make(manifest, lifecycle, step, run_id)
            self.models.hold_alias(
                ref.name, alias_of(ref.step), partial(self.models.newest, ref.name, ref.step)
            )
            if is_candidate:
                self.models.set_alias(ref.name, "candidate", ref.version)
        with claim(self.store.root, lifecycle, manifest.stage, manifest.key, step=step):
            self.runs.complete(
                run_id, manifest, flow_run_id
            )  # reads the present parameters, then adds
        return ref

    def resync(self, lifecycle: str) -> list[ModelVersionRef]:
        """Register all finished stages that the lifecycle ever requested, oldest first.

        Raises:
            IntegrityError: if artifacts differ from their manifests; the message names all of them.
                The other stages are registered nevertheless.
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


def _started_at(store: Store, manifest: Manifest) -> float:
    lines = read_jsonl(store.attempt_of(manifest).metrics)
    return lines[0]["time"] if lines else manifest.finished_at
