"""`ratchet gc --results`: only what no promotion, alias or young run reaches may be deleted."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli.main import app
from stages.runtime.store import Store
from tasks.ledger import force
from tasks.registry import Registry
from tasks.run_steps import RunStep, note_step
from tests.tasks.real_services import finish_stage
from training_core.errors import ConfigError

pytestmark = pytest.mark.services

DAY = 86400
LONG_AGO = time.time() - 30 * DAY


@pytest.fixture
def store(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in {
        "RATCHET_HOME": str(tmp_path / "home"),
        "RATCHET_STORE": str(tmp_path / "store"),
        "MLFLOW_TRACKING_URI": mlflow_uri,
        "RAY_ADDRESS": "http://127.0.0.1:1",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    return Store(tmp_path / "store")


def gc(*words: str) -> Result:
    done = CliRunner().invoke(app, ["gc", "--results", *words])
    assert done.exit_code == 0, done.output
    return done


def age(store: Store) -> None:
    """Let everything in the store be a month old."""
    for path in (store.root, *store.root.rglob("*")):
        os.utime(path, (LONG_AGO,) * 2)


def test_results_that_nothing_reaches_are_listed_and_deleted_on_request_only(store, mlflow_uri):
    registry, lifecycle = Registry(mlflow_uri, store), f"gc-{uuid.uuid4().hex[:8]}"

    def finish(step: str, seed: int, **parents):
        keys = {role: made.key for role, made in parents.items()}
        made = finish_stage(store, step, seed=seed, parents=keys, finished_at=LONG_AGO + seed)
        return made, registry.register(made, lifecycle=lifecycle)

    first, _ = finish("sft", 1)  # of which the champion was made
    old, old_version = finish("dpo", 2, policy=first)  # was champion
    second, second_version = finish("sft", 3)  # of which nothing was made that lives
    lost, lost_version = finish("dpo", 4, policy=second)
    used, _ = finish("dpo", 5, policy=first)  # a young run has used it
    third, _ = finish("sft", 6)  # the alias of its step
    newest, _ = finish("dpo", 7, policy=first)  # the same
    name = old_version.name
    force(registry, name, old_version.version, based_on=0, who="ann", why="a drill")
    age(store)
    note_step(store, str(uuid.uuid4()), RunStep(step="dpo", stage="dpo", key=used.key))

    listed = gc()
    assert "2 results with 0.000 GiB may be deleted" in listed.stdout
    assert f"dpo/{lost.key[:12]}" in listed.stdout
    assert f"sft/{second.key[:12]}" in listed.stdout
    assert store.find("dpo", lost.key) is not None  # it was only listed
    assert "every result is young" in gc("--older-than", "90").stdout

    assert lost_version.path.exists()
    assert "2 results with 0.000 GiB were deleted" in gc("--delete").stdout
    kept = {manifest.key for manifest in store.manifests()}
    assert kept == {each.key for each in (first, old, used, third, newest)}
    assert not store.stage_dir("dpo", lost.key).exists()
    assert not lost_version.path.exists()  # or its links would keep the space
    for version in (lost_version, second_version):
        with pytest.raises(ConfigError, match="there is no"):
            registry.models.resolve(version.uri)
    assert registry.models.resolve(f"models:/{name}@champion").version == old_version.version
    assert "every result is young" in gc().stdout
