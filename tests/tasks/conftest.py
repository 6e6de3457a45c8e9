"""A real MLflow server over HTTP, and finished stages made of real Hugging Face checkpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_services import MlflowServer, tiny_llama

from stages.runtime.store import Manifest, Store, record_files
from tasks.registry import Registry


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


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

    def finish(step: str, *, seed: int = 0, kind: str = "policy", **fields: object) -> Manifest:
        draft = {
            "stage": step.split("-", maxsplit=1)[0],
            "step": step,
            "version": 1,
            "attempt": "a1",
            "kind": kind,
            "key": f"{seed:04d}{uuid.uuid5(uuid.NAMESPACE_OID, step).hex}".ljust(64, "0"),
            "config": {"seed": seed, "training": {"batch_size": 8}},
            "input_digests": {},
            "parents": {},
            "metrics": {},
            "environment": {},
            "cost": {},
            "finished_at": time.time(),
        } | fields
        artifact = store.attempt(draft["stage"], draft["key"], draft["attempt"]).artifact
        artifact.mkdir(parents=True)
        if kind in ("policy", "reward_model"):
            tiny_llama(seed).save_pretrained(artifact)
        else:
            (artifact / "rows.jsonl").write_text(f'{{"seed": {seed}}}\n')
        files, digest = record_files(artifact)
        manifest = Manifest(files=files, digest=digest, **draft)
        assert store.publish(manifest)
        return manifest

    return finish
