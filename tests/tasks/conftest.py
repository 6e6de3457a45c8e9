"""A registry on the real MLflow server, and finished stages: real Hugging Face checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from real_services import MlflowServer, finish_stage

from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.registry import Registry


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[MlflowServer]:
    """A server that the test itself starts and stops."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = MlflowServer(folder)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def registry(mlflow_server: MlflowServer, store: Store) -> Registry:
    return Registry(mlflow_server.uri, store)


@pytest.fixture
def lifecycle() -> str:
    return f"tiny-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def finish(store: Store) -> Callable[..., Manifest]:
    """Finish a stage in the store: `finish(step, seed=…)`, where the seed makes other weights."""

    return partial(finish_stage, store)
