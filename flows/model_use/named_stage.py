"""Find the finished stage that a person names: by a registered version, or by its stage key."""

from __future__ import annotations

from flows.model_use.named_model import REGISTERED, whole_reference
from stages.catalog import STAGES
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import StoreGraph
from tasks.connections import Connections
from training_core.errors import ConfigError

FEWEST = 4
"""Characters of a stage key that a person must type."""


def find_stage(name: str, graph: StoreGraph, connections: Connections) -> Manifest:
    """Find a finished stage.

    Args:
        name: `tiny@champion` or `tiny/7` for an alias or a version of the registered model
            `tiny.policy`, also as `models:/…`; or `<stage>/<start of its stage key>`.
        graph: the store's stages.
        connections: to store and registry.

    Raises:
        ConfigError: if there is no such stage, several keys start so, or the store no longer has
            what a version was made of.
    """
    stage, _, start = name.partition("/")
    if stage in STAGES and len(start) >= FEWEST:
        return _by_key(stage, start, graph)
    if REGISTERED.fullmatch(name) is None:
        raise ConfigError(
            "expected <lifecycle>@<alias> (e.g. tiny@champion), <lifecycle>/<version>, "
            f"models:/<name>@<alias> or <stage>/<stage key>, found '{name}'"
        )
    version = connections.registry.models.resolve(whole_reference(name))
    made = connections.store.find_digest(version.stage, version.stage_key, version.digest)
    if made is None:
        raise ConfigError(
            f"{version.uri} was made by {version.stage}/{version.stage_key[:12]}, of which "
            f"{connections.store.root} has no manifest; use the store of its lifecycle"
        )
    return made


def _by_key(stage: str, start: str, graph: StoreGraph) -> Manifest:
    found = [m for m in graph.stages.values() if m.stage == stage and m.key.startswith(start)]
    if len(found) != 1:
        count = "none" if not found else ", ".join(m.key[:12] for m in found)
        raise ConfigError(
            f"expected one finished {stage} whose stage key starts with '{start}', found {count}"
        )
    return found[0]
