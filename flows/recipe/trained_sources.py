"""The data that a preset's steps train on, and that the models it starts from were trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from flows.config.given_models import RegisteredModelConfig
from flows.config.lifecycle_config import LifecycleConfig
from stages.catalog import find_stage, stage_of
from stages.configs.block import StageConfig
from stages.configs.data_config import HubDataConfig
from stages.datasets.configured import SingleSource, datasets_at, kind_of
from stages.datasets.kinds import RowKind
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import StoreGraph
from tasks.connections import Connections
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError

log = logging.getLogger("ratchet.flows")


@dataclass(frozen=True)
class TrainedSource:
    """A source that a step trains on.

    Attributes:
        name: dotted, as in an override; with the model, for one of a model's lineage.
        kind: how its rows are read.
        data: where they are.
        is_inherited: whether it is of a model that the preset starts from. Such data may be gone
            since.
    """

    name: str
    kind: RowKind[Any]
    data: SingleSource
    is_inherited: bool = False

    @property
    def is_on_hub(self) -> bool:
        """Whether reading it may be a download."""
        return is_on_hub(self.data)


def is_on_hub(data: SingleSource) -> bool:
    """Whether reading a source may be a download."""
    return isinstance(data, HubDataConfig)


def trained_sources(config: LifecycleConfig) -> Iterator[TrainedSource]:
    """Yield what the steps of a preset train on."""
    for block, stage in config.stages().items():
        yield from _of_stage(block, stage)


def inherited_sources(
    config: LifecycleConfig, connections: Connections, *versions: ModelVersionRef
) -> list[TrainedSource]:
    """Return what the models that a preset starts from were trained on, once each.

    Args:
        config: whose `given` models of the registry are meant.
        connections: the store has their lineage.
        versions: further models, e.g. a champion that a round starts from.
    """
    models = connections.registry.models
    given = [
        models.resolve(model.model.uri)
        for model in config.given.values()
        if isinstance(model.model, RegisteredModelConfig)
    ]
    found: dict[str, TrainedSource] = {}
    known = {_identity(source) for source in trained_sources(config)}
    for version in dict.fromkeys((*given, *versions)):
        for source in _of_version(version, connections):
            if _identity(source) not in known:
                found.setdefault(_identity(source), source)
    return list(found.values())


def _identity(source: TrainedSource) -> str:
    return f"{source.kind.name} {source.data.model_dump_json()}"


def _of_version(version: ModelVersionRef, connections: Connections) -> Iterator[TrainedSource]:
    store = connections.store
    own = store.find_digest(version.stage, version.stage_key, version.digest)
    if own is None:
        log.warning("%s has no lineage in %s; its data is not checked", version.uri, store.root)
        return
    for made in StoreGraph.of(store).before(own):
        if (stage := _config_of(made)) is not None:
            origin = f"{version.name}/{version.version}, step {made.step}: "
            for source in _of_stage("", stage):
                yield TrainedSource(origin + source.name, source.kind, source.data, True)


def _config_of(made: Manifest) -> StageConfig | None:
    try:
        return find_stage(made.stage).config.model_validate(made.config)
    except (ConfigError, ValidationError):  # of an earlier version of the stage
        log.warning("the data of step '%s' (%s) is not checked", made.step, made.key[:12])
        return None


def _of_stage(block: str, stage: StageConfig) -> Iterator[TrainedSource]:
    uses: Mapping[str, Any] = stage_of(stage).reads
    for field, use in uses.items():
        if use.is_trained_on:
            for name, source in datasets_at(stage, field):
                whole = f"{block}.{name}" if block else name
                yield TrainedSource(whole, kind_of(use, stage), source)
