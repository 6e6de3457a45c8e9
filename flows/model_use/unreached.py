"""Results that nothing needs any more: no promoted version, no alias and no young run.

A result is reached if it was made recently, if a flow run used it recently, if an alias names its
version, if its version ever was champion, if it is the evidence of a promotion, or if one of these
was made from it. All others may be deleted; a run that wants one of them makes it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.runtime.manifest import Manifest
from stages.runtime.store import MANIFEST, Store
from stages.runtime.store_graph import StoreGraph
from tasks import ledger
from tasks.connections import Connections
from tasks.locks import lifecycles_in
from tasks.registry import Registry
from tasks.run_steps import steps_of_run
from tasks.versions import MODEL_SUFFIX
from training_core.errors import ConfigError


@dataclass(frozen=True)
class UnreachedResult:
    """A result that may be deleted; `size` is in bytes, of all attempts at its stage key."""

    manifest: Manifest
    folder: Path
    size: int


def unreached_results(connections: Connections, *, younger_than: float) -> list[UnreachedResult]:
    """Find results that nothing reaches, largest first; change nothing.

    Args:
        connections: to store and registry.
        younger_than: Unix time; what was made or used after it stays.

    Raises:
        TransientError: if MLflow cannot be reached, so that nobody knows what it reaches.
    """
    store = connections.store
    graph = StoreGraph.of(store)
    roots = {m.key for m in graph.stages.values() if m.finished_at > younger_than}
    roots |= set(_of_young_runs(store, younger_than))
    versions, evidence = _of_registry(connections.registry)
    roots |= versions | {m.key for m in graph.stages.values() if m.digest in evidence}
    kept = {
        made.key for key in roots & graph.stages.keys() for made in graph.before(graph.stages[key])
    }
    found = []
    for manifest in graph.stages.values():
        folder = store.stage_dir(manifest.stage, manifest.key)
        if manifest.key not in kept and _written_at(folder) < younger_than:
            found.append(UnreachedResult(manifest, folder, _size(folder)))
    return sorted(found, key=lambda result: result.size, reverse=True)


def delete_result(result: UnreachedResult, registry: Registry) -> None:
    """Delete a result from MLflow and from the store; its run in MLflow keeps curves and metrics.

    Raises:
        TransientError: if MLflow cannot be reached; the result stays.
    """
    from tasks.registry.retirement import retire  # noqa: PLC0415 - only to delete

    retire(registry, result.manifest)
    (result.folder / MANIFEST).unlink(missing_ok=True)  # from here on the stage is not done
    shutil.rmtree(result.folder)


def _of_young_runs(store: Store, younger_than: float) -> Iterator[str]:
    """Yield the keys of all steps of the flow runs that were active after a time."""
    for folder in (store.root / "runs").glob("*"):
        if folder.is_dir() and _written_at(folder) >= younger_than:
            yield from (step.key for step in steps_of_run(store, folder.name).values())


def _of_registry(registry: Registry) -> tuple[set[str], set[str]]:
    """Return the stage keys of versions with an alias or a past as champion, and the evidence.

    The evidence are digests of the evaluations on which promotions were decided.
    """
    keys: set[str] = set()
    evidence: set[str] = set()
    for lifecycle in lifecycles_in(registry.store.root):
        for suffix in MODEL_SUFFIX.values():
            name = f"{lifecycle}.{suffix}"
            promotions = ledger.history(registry, name)
            numbers = {*registry.models.aliases(name).values(), *(p.target for p in promotions)}
            for number in numbers:
                try:
                    keys.add(registry.models.resolve(f"models:/{name}/{number}").stage_key)
                except ConfigError:  # somebody has deleted it in MLflow
                    continue
            evidence |= {
                entry.tags["evaluation"]
                for promotion in promotions
                for entry in ledger.decisions_on(registry, name, promotion.target)
                if "evaluation" in entry.tags
            }
    return keys, evidence


def _written_at(folder: Path) -> float:
    """Return when something in a folder was written last, as Unix time."""
    return max([folder.lstat().st_mtime, *(path.lstat().st_mtime for path in folder.rglob("*"))])


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
