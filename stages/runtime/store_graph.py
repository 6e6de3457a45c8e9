"""The finished stages of a store as a graph: what was made of what, and of which data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from stages.catalog import STAGES
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store


@dataclass(frozen=True)
class StoreGraph:
    """The finished stages of a store.

    Attributes:
        stages: their manifests by stage key, oldest first.
    """

    stages: Mapping[str, Manifest]

    @classmethod
    def of(cls, store: Store) -> Self:
        """Read all manifests of a store."""
        return cls({manifest.key: manifest for manifest in store.manifests()})

    def before(self, manifest: Manifest) -> list[Manifest]:
        """Return a stage after all stages that it was made from, each of them after its inputs."""
        found: dict[str, Manifest] = {}

        def visit(one: Manifest) -> None:
            for key in one.parents.values():
                if key in self.stages and key not in found:
                    visit(self.stages[key])
            found[one.key] = one

        visit(manifest)
        return list(found.values())

    def after(self, *keys: str) -> list[Manifest]:
        """Return all stages that were made from these, directly or not, oldest first."""
        found: dict[str, Manifest] = {}
        waiting = list(keys)
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child.key not in found:
                    found[child.key] = child
                    waiting.append(child.key)
        return sorted(found.values(), key=lambda made: made.finished_at)

    def reading(self, source: str) -> list[Manifest]:
        """Return the stages that read a dataset or base model: a hub id, a path or a file name."""
        return [m for m in self.stages.values() if source in _names_of_sources(m)]

    @cached_property
    def _children(self) -> Mapping[str, list[Manifest]]:
        children: dict[str, list[Manifest]] = {}
        for manifest in self.stages.values():
            for key in {*manifest.parents.values()}:
                children.setdefault(key, []).append(manifest)
        return children


def sources_in(config: Mapping[str, Any], stage: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (field, block) of every dataset and base model in the config of a stage."""
    reads = STAGES[stage].reads if stage in STAGES else ()  # the stage of an older version
    for path in ("base", "model", *reads):
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and "name" in value:
            yield path, dict(value)


def _names_of_sources(manifest: Manifest) -> set[str]:
    sources = (source for _, source in sources_in(manifest.config, manifest.stage))
    return {name for source in sources for name in _names(source)}


def _names(source: Mapping[str, Any]) -> Iterator[str]:
    """Yield every name of a source by which a person may mean it."""
    match source["name"]:
        case "mixed":
            for part in source["parts"]:
                yield from _names(part["data"])
        case "hub":
            yield source["repo"]
        case "files" | "local":
            paths = [source["path"]] if isinstance(source["path"], str) else source["path"]
            for path in paths:
                yield from (path, Path(path).name)
        case name:
            yield name
