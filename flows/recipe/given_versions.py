"""Given models of the registry: the version that an alias names when a run starts."""

from __future__ import annotations

from pydantic import BaseModel

from flows.config.given_models import RegisteredModelConfig
from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.tree import rewritten
from tasks.connections import Connections


def pin_versions(config: LifecycleConfig, connections: Connections) -> LifecycleConfig:
    """Return the config with each alias of the registry replaced by its present version.

    The alias may move before the run ends, or before a Retry.

    Raises:
        ConfigError: if the registry has no such model, version or alias.
    """

    def pin(block: BaseModel) -> BaseModel:
        if not isinstance(block, RegisteredModelConfig):
            return block
        version = connections.registry.models.resolve(block.uri)
        return block.model_copy(update={"uri": version.uri})

    return rewritten(config, pin)
