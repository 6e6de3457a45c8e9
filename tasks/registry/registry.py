"""The registry: copies finished stages of the store to MLflow, as runs and model versions."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from pathlib import Path

from stages.files import read_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.locks import claim, claimed_step, lifecycles_in
from tasks.registry.descriptions import result_note
from tasks.registry.flow_runs import FlowRun, FlowRuns
from tasks.registry.mlflow_connection import MlflowConnection
from tasks.registry.receipts import Receipt, find_receipt, write_receipt
from tasks.registry.registered_models import RegisteredModels
from tasks.registry.runs import Runs
from tasks.versions import MODEL_SUFFIX, ModelVersionRef, alias_of
from training_core.errors import ConfigError, IntegrityError


class Registry:
    """A copy of `store` in the MLflow server at `tracking_uri`.

    Args:
        tracking_uri: `http://host:port`, or `http://user:password@host:port`; model versions and
            runs are on the same server.
        store: its root must be a path that is valid for everyone who loads a model.

    Attributes:
        flow_runs: runs of flow runs, with their reports.
        runs: of stages, with their curves.
        models: registered models with versions, aliases and ledgers.
    """

    def __init__(self, tracking_uri: str, store: Store) -> None:
        self.mlflow = MlflowConnection(tracking_uri)
        self.store = store
        self.flow_runs = FlowRuns(self.mlflow, store)
        self.runs = Runs(self.mlflow, store, self.flow_runs)
        self.models = RegisteredModels(self.mlflow, store)

    def register(
        self,
        manifest: Manifest,
        *,
        lifecycle: str,
        step: str | None = None,
        flow_run: FlowRun | None = None,
        is_candidate: bool = False,
    ) -> ModelVersionRef | None:
        """Register the model of a finished stage as a version, once, and complete its run.

        Args:
            manifest: manifest of the finished stage.
            lifecycle: e.g. `tiny`; registers in `tiny.policy` or `tiny.reward-model`.
            step: name of the stage in this lifecycle's flow; the alias of its newest version. None
                uses the step of the manifest, i.e. of the first flow that requested the stage.
            flow_run: the run of a stage without one is placed below its run; a run that is there
                stays below the flow run that made it.
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
        known, ref = self._known(manifest, lifecycle)
        if not known:
            ref = self._register_anew(manifest, lifecycle, step, flow_run)
        if ref is not None and is_candidate:
            self.models.set_alias(ref.name, "candidate", ref.version)
        return ref

    def _known(self, manifest: Manifest, lifecycle: str) -> tuple[bool, ModelVersionRef | None]:
        """Return whether the result is registered, and its version; one request if it is."""
        receipt = find_receipt(self.store.root, lifecycle, manifest, self.mlflow.address)
        if receipt is None:
            return False, None
        if receipt.name is None or receipt.version is None:
            return self.runs.is_complete(receipt.run_id, manifest), None
        ref = self.models.find(receipt.name, receipt.version, manifest)
        return ref is not None, ref

    def _register_anew(
        self, manifest: Manifest, lifecycle: str, step: str, flow_run: FlowRun | None
    ) -> ModelVersionRef | None:
        run_id = self.runs.run_for(
            lifecycle,
            manifest.stage,
            step,
            manifest.key,
            attempt=manifest.attempt,
            started_at=_started_at(self.store, manifest),
            flow_run=flow_run,
        )
        ref = None
        if manifest.kind in MODEL_SUFFIX:
            ref = self.models.find_or_make(manifest, lifecycle, step, run_id)
            self.models.hold_aliases(ref.name, partial(self._newest, ref.name, ref.step))
        root = self.store.root
        note = result_note(root, lifecycle, manifest, step)
        with claim(root, lifecycle, manifest.stage, manifest.key, step=step):
            self.runs.complete(run_id, manifest, note)  # reads the present parameters, then adds
        receipt = Receipt(address=self.mlflow.address, digest=manifest.digest, run_id=run_id)
        if ref is not None:
            receipt = receipt.model_copy(update={"name": ref.name, "version": ref.version})
        write_receipt(root, lifecycle, manifest, receipt)
        return ref

    def run_of(self, manifest: Manifest, lifecycle: str) -> str | None:
        """Return the id of the run of a registered result; asks nobody."""
        receipt = find_receipt(self.store.root, lifecycle, manifest, self.mlflow.address)
        return receipt.run_id if receipt else None

    def _newest(self, name: str, step: str) -> dict[str, int | None]:
        return {alias_of(step): self.models.newest(name, step)}

    def resync(self, lifecycle: str) -> list[ModelVersionRef]:
        """Register all finished stages that the lifecycle ever requested, oldest first.

        Looks at everything anew, so that what was deleted in MLflow comes back.

        Raises:
            ConfigError: if the lifecycle never requested any; the message lists those that did.
            IntegrityError: if artifacts differ from their manifests; the message names all of them.
                The other stages are registered nevertheless.
        """
        _require_lifecycle(self.store.root, lifecycle)
        refs, broken = [], []
        for manifest in self.store.manifests():
            step = claimed_step(self.store.root, lifecycle, manifest.stage, manifest.key)
            if step is None:
                continue
            try:
                self.store.verify(manifest)
                refs.append(self._register_anew(manifest, lifecycle, step, None))
            except IntegrityError as error:
                broken.append(str(error))
        if broken:
            raise IntegrityError("not registered: " + "; ".join(broken))
        return [ref for ref in refs if ref is not None]


def _require_lifecycle(root: Path, lifecycle: str) -> None:
    known = lifecycles_in(root)
    if lifecycle in known:
        return
    near = get_close_matches(lifecycle, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known) or 'none'}"
    raise ConfigError(f"no stage of a lifecycle {lifecycle!r:.120} was run with {root}; {hint}")


def _started_at(store: Store, manifest: Manifest) -> float:
    """Return when the stage began; one that was resumed began with its first attempt."""
    lines = read_jsonl(store.attempt_of(manifest).metrics)
    begun = manifest.finished_at - manifest.cost.get("seconds", 0.0)
    return min(begun, lines[0]["time"]) if lines else begun
