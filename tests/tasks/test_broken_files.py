"""Names and files that someone changed: what the tasks say of them, without any service."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities.model_registry import ModelVersion

from stages.attempt import Attempt
from stages.runtime.error_record import read_error
from stages.runtime.heartbeats import is_alive
from stages.runtime.store import Store
from tasks.connections import connect
from tasks.follow import ProgressBar
from tasks.locks import claim, claimed_step
from tasks.registry import Registry
from tasks.registry.registered_models import _ref_of
from training_core.errors import ConfigError, IntegrityError

BROKEN = ["", "{", "[]", "3", '{"time": NaN}', '{"time": "now"}', "{}", '{"a": 1, "a": 2}']
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


@pytest.mark.parametrize("content", BROKEN)
def test_a_heartbeat_that_is_none_is_named(attempt, content):
    attempt.heartbeat.write_text(content)
    with pytest.raises(IntegrityError, match=r"heartbeat\.json: expected .*found .*; delete it"):
        is_alive(attempt)


@pytest.mark.parametrize("content", [*BROKEN, '{"code": "20", "kind": "x", "message": "y"}'])
def test_an_error_record_that_is_none_is_named(attempt, content):
    attempt.error.write_text(content)
    with pytest.raises(IntegrityError, match=r"error\.json: expected .*found .*; delete it; .*log"):
        read_error(attempt)


@pytest.mark.parametrize("content", BROKEN)
def test_a_progress_that_is_none_is_named(attempt, content):
    attempt.progress.write_text(content)
    with pytest.raises(IntegrityError, match=r"progress\.json: expected .*found .*; delete it"):
        ProgressBar(attempt.progress, "sft").refresh()


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".", "a\n"])
def test_a_lock_is_below_the_store(tmp_path, name):
    with pytest.raises(ConfigError, match="lifecycle: expected letters, digits"):
        claimed_step(tmp_path, name, "sft", "k")
    with (
        pytest.raises(ConfigError, match="stage: expected letters, digits"),
        claim(tmp_path, "tiny", name, "k", step="sft"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_resync_of_an_unknown_lifecycle_names_the_known_ones(tmp_path):
    registry = Registry(NOWHERE, Store(tmp_path))
    with pytest.raises(ConfigError, match=r"no stage of a lifecycle 'tinny'.*there are: none"):
        registry.resync("tinny")
    for lifecycle in ("tiny", "mine"):
        with claim(tmp_path, lifecycle, "sft", "k", step="sft"):
            pass
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        registry.resync("tinny")
    with pytest.raises(ConfigError, match="there are: mine, tiny"):
        registry.resync("../x")
    assert registry.resync("tiny") == []


@pytest.mark.parametrize("tag", ["stage", "stage_key", "digest", "step"])
def test_a_tag_that_leads_out_of_the_store_is_refused(tmp_path, tag):
    tags = {"stage": "sft", "step": "sft", "stage_key": "k", "digest": "d", tag: "../../x"}
    version = ModelVersion("tiny.policy", 3, 0, source=(tmp_path / "x").as_uri(), run_id="r")
    version.tags.update(tags)
    with pytest.raises(ConfigError, match=rf"the tag '{tag}' of models:/tiny\.policy/3: expected"):
        _ref_of(version)


@pytest.mark.parametrize("name", ["RAY_ADDRESS", "MLFLOW_TRACKING_URI"])
@pytest.mark.parametrize(
    "address",
    ["nonsense", "http://", "http://[::1", "http://h:x", "http://h:99999", "ftp://h", "//h", " "],
)
def test_an_address_that_is_none_is_told_before_anybody_is_asked(
    tmp_path, monkeypatch, name, address
):
    for variable in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(variable, NOWHERE)
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path))
    assert connect().store.root == tmp_path
    monkeypatch.setenv(name, address)
    with pytest.raises(ConfigError, match=rf"{name}: expected an address as in http.*; correct it"):
        connect()
