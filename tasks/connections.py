"""The three services that a flow uses; their addresses come from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from stages.safe_text import redacted
from tasks.registry import Registry
from training_core.errors import ConfigError


@dataclass(frozen=True)
class Connections:
    """The store (a folder that every node can access), the Ray cluster, and the registry."""

    store: Store
    cluster: RayCluster
    registry: Registry


def connect(environment: Mapping[str, str] | None = None) -> Connections:
    """Connect to the addresses in RATCHET_STORE, RAY_ADDRESS and MLFLOW_TRACKING_URI.

    Args:
        environment: has these variables; None for that of this process.

    Raises:
        ConfigError: if one of them is not set, or is not an address.
    """
    given = os.environ if environment is None else environment
    names = ("RATCHET_STORE", "RAY_ADDRESS", "MLFLOW_TRACKING_URI")
    if missing := [name for name in names if not given.get(name)]:
        raise ConfigError(
            f"{', '.join(missing)} must be set; `ratchet up` starts local services, and "
            '`eval "$(ratchet env)"` sets these for a shell'
        )
    for name in names[1:]:
        _require_address(name, given[name])
    store = Store(Path(given["RATCHET_STORE"]).resolve())
    registry = Registry(given["MLFLOW_TRACKING_URI"], store)
    return Connections(store, RayCluster(given["RAY_ADDRESS"]), registry)


def _require_address(name: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_address = is_address and parts.port != 0  # reading it checks it, too
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f"{name}: expected an address as in http://host:8265, found "
            f"{redacted(address)!r:.120}; correct it"
        )
