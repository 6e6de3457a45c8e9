"""How a registered version was made: the stages before it, and the gate's decisions about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.model_use.named_model import connections_here
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import StoreGraph
from tasks import ledger
from tasks.decisions import BY_HAND
from tasks.gate import Verdict
from tasks.versions import Entry, ModelVersionRef


@dataclass(frozen=True)
class PastDecision:
    """What was decided about a version, one of `tasks.decisions.SAID`, and by whom."""

    verdict: str
    decided_by: str
    reason: str
    evidence: Verdict | None


@dataclass(frozen=True)
class Lineage:
    """How a version was made.

    Attributes:
        version: the version.
        stages: manifests of its stage and of all stages before it that the store still has, each
            after those that it needed.
        decisions: what was decided about it, oldest first.
    """

    version: ModelVersionRef
    stages: tuple[Manifest, ...]
    decisions: tuple[PastDecision, ...]

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the step that made it; empty if the store no longer has it."""
        return self.stages[-1].metrics if self.stages else {}


def lineage_of(version: ModelVersionRef) -> Lineage:
    """Read the lineage of a version from the store and the registry."""
    connections = connections_here()
    store = connections.store
    own = store.find_digest(version.stage, version.stage_key, version.digest)
    stages = tuple(StoreGraph.of(store).before(own)) if own is not None else ()
    entries = ledger.decisions_on(connections.registry, version.name, version.version)
    return Lineage(version, stages, tuple(map(_decision, entries)))


def described(source: Mapping[str, Any]) -> str:
    """Return a dataset or base model in words, without the folders of this machine."""
    match source["name"]:
        case "mixed":
            return ", ".join(described(part["data"]) for part in source["parts"])
        case "hub":
            return f"{source['repo']}@{source['revision'][:12]}"
        case "files" | "local":
            paths = source["path"]
            paths = [paths] if isinstance(paths, str) else paths
            return ", ".join(Path(path).name for path in paths)
        case name:
            return str(name)


def hub_repos(source: Mapping[str, Any]) -> list[str]:
    """Return the hub ids in a dataset or base model."""
    if source["name"] == "mixed":
        return [repo for part in source["parts"] for repo in hub_repos(part["data"])]
    return [source["repo"]] if source["name"] == "hub" else []


def _decision(entry: Entry) -> PastDecision:
    tags = entry.tags
    is_judged = tags["verdict"] not in BY_HAND
    evidence = Verdict.model_validate_json(tags["evidence"]) if is_judged else None
    return PastDecision(tags["verdict"], tags["decided_by"], tags["reason"], evidence)
