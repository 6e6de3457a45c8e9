"""What a store no longer needs is found, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from stages.runtime.leftovers import leftovers
from tests.stages.published import draft, published

NOW = time.time()
DAY = 86400
WEEK = 7 * DAY


def with_checkpoint(attempt, name="checkpoints"):
    folder = attempt.directory / name / "step-4"
    folder.mkdir(parents=True)
    (folder / "optimizer.pt").write_bytes(b"0" * 1000)
    attempt.log.write_text("a log")


def aged(store, days: float) -> None:
    """Let everything in the store be so old."""
    for path in (store.root, *store.root.rglob("*")):
        os.utime(path, (NOW - days * DAY,) * 2)


def found(store, older_than=WEEK):
    names = {}
    for each in leftovers(store, older_than=older_than, now=NOW):
        names[each.path.relative_to(store.root / "stages").as_posix()] = each.why
    return names


def key(letter: str) -> str:
    return letter * 64


@pytest.fixture
def full(store):
    """A finished stage, one whose second attempt won, one set aside and one interrupted."""
    with_checkpoint(store.attempt_of(published(store, key=key("a"))))
    loser = draft(store, "a1", 2.0, key=key("b"))
    published(store, attempt="a2", key=key("b"))
    with_checkpoint(store.attempt_of(loser))
    with_checkpoint(store.attempt_of(published(store, key=key("c"))))
    store.set_aside("sft", key("c"), once_for="a test")
    with_checkpoint(store.attempt_of(draft(store, key=key("d"))))
    return store


def test_results_logs_and_errors_stay_and_the_rest_is_named(full):
    aged(full, 8)
    assert found(full) == {
        f"sft/{key('a')}/attempts/a1/checkpoints": "checkpoints of a finished stage",
        f"sft/{key('b')}/attempts/a1/checkpoints": "files of another attempt",
        f"sft/{key('b')}/attempts/a1/artifact": "files of another attempt",
        f"sft/{key('c')}/attempts/a1/checkpoints.set-aside": "checkpoints of a finished stage",
        f"sft/{key('d')}/attempts/a1/checkpoints": "files of an unfinished stage",
        f"sft/{key('d')}/attempts/a1/artifact": "files of an unfinished stage",
    }


def test_what_was_written_lately_may_belong_to_a_running_stage(full):
    aged(full, 8)
    heartbeat = full.attempt("sft", key("d"), "a1").heartbeat
    heartbeat.write_text("{}")
    assert not any(key("d") in name for name in found(full, older_than=0))
    for path in (heartbeat, heartbeat.parent):
        os.utime(path, (NOW - 3700,) * 2)
    assert any(key("d") in name for name in found(full, older_than=0))
    assert not any(key("d") in name for name in found(full, older_than=DAY))


def test_a_key_with_a_damaged_manifest_is_left_alone(full):
    path = full.stage_dir("sft", key("a")) / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"sft"', '"sfd"', 1))
    full.find("sft", key("a"))  # renames it
    aged(full, 8)
    assert not any(key("a") in name for name in found(full))


def test_the_command_lists_first_and_deletes_only_when_it_is_told_to(full, tmp_path, monkeypatch):
    for name, value in {
        "RATCHET_HOME": str(tmp_path / "home"),
        "RATCHET_STORE": str(full.root),
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:1",
        "RAY_ADDRESS": "http://127.0.0.1:1",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)
    aged(full, 8)
    kept = {path for path in full.root.rglob("*") if path.is_file()}
    listed = CliRunner().invoke(app, ["gc"])
    assert "6 folders with 0.000 GiB may be deleted; `ratchet gc --delete`" in listed.output
    assert {path for path in full.root.rglob("*") if path.is_file()} == kept
    assert (
        "nothing that is not needed" in CliRunner().invoke(app, ["gc", "--older-than", "9"]).output
    )
    assert (
        "6 folders with 0.000 GiB were deleted"
        in CliRunner().invoke(app, ["gc", "--delete"]).output
    )
    left = {path for path in full.root.rglob("*") if path.is_file()}
    assert {path.name for path in kept - left} == {
        "optimizer.pt",
        "model.safetensors",
        "config.json",
    }
    assert full.find("sft", key("a")) is not None
    assert full.find("sft", key("b")) is not None
    assert len([path for path in left if path.name == "log.txt"]) == 4
    assert Path(full.attempt("sft", key("c"), "a1").artifact / "model.safetensors").exists()
