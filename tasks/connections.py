"""The three services that a flow uses; their addresses come from environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from tasks.registry import Registry
from training_core.errors import ConfigError


@dataclass(frozen=True)
class Connections:
    """The store (a folder that every node can access), the Ray cluster, and the registry."""

    store: Store
    cluster: RayCluster
    registry: Registry


def connect() -> Connections:
    """Connect to the addresses in RATCHET_STORE, RAY_ADDRESS and MLFLOW_TRACKING_URI.

    Raises:
        ConfigError: if one of them is not set.
    """
    names = ("RATCHET_STORE", "RAY_ADDRESS", "MLFLOW_TRACKING_URI")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ConfigError(
            f"{', '.join(missing)} must be set; `ratchet up` starts local services, and "
            '`eval "$(ratchet env)"` sets these for a shell'
        )
    store = Store(Path(os.environ["RATCHET_STORE"]).resolve())
    return Connections(store, RayCluster(), Registry(os.environ["MLFLOW_TRACKING_URI"], store))
