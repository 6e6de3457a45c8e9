"""Finished stages on disk: the first to finish wins, and damage is found."""

import os
import stat

import pytest

from stages.attempt import Attempt
from stages.runtime import stage_key
from stages.runtime.manifest import record_files
from stages.runtime.stage_key import digest_of_file, digest_of_tree
from tests.stages.published import KEY, draft, published
from training_core.errors import ConfigError, IntegrityError


def in_artifact(store, manifest, name):
    path = store.artifact_dir(manifest) / name
    path.chmod(0o644)
    return path


def test_a_published_manifest_is_found_as_it_was_written(store):
    manifest = published(store)
    assert store.find("sft", KEY) == manifest
    assert [f.path for f in manifest.files] == ["model.safetensors", "sub/config.json"]
    assert store.find("sft", "other") is None


def test_of_two_attempts_the_first_to_finish_wins_and_the_other_is_told(store):
    first, second = draft(store, "a1", 1.0), draft(store, "a2", 2.0)
    assert store.publish(second)
    before = (store.stage_dir("sft", KEY) / "manifest.json").read_bytes()
    assert not store.publish(first)
    assert (store.stage_dir("sft", KEY) / "manifest.json").read_bytes() == before
    assert store.find("sft", KEY) == second
    left = [p.name for p in store.stage_dir("sft", KEY).iterdir()]
    assert sorted(left) == ["attempts", "manifest.json"]  # no drafts stay


def test_an_artifact_is_read_only_once_it_is_published(store):
    manifest = draft(store)
    path = store.artifact_dir(manifest) / "model.safetensors"
    assert path.stat().st_mode & stat.S_IWUSR
    store.publish(manifest)
    for record in manifest.files:
        mode = (store.artifact_dir(manifest) / record.path).stat().st_mode
        assert not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_the_loser_of_the_race_keeps_its_hands_off_the_winners_files(store):
    winner, loser = draft(store, "a1", 1.0), draft(store, "a2", 2.0)
    store.publish(winner)
    store.publish(loser)
    assert in_artifact(store, loser, "model.safetensors").stat().st_mode & stat.S_IWUSR
    store.verify(winner)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def lie_in_the_header(path):
    content = bytearray(path.read_bytes())
    content[8] = ord("x")  # the first byte of the JSON
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", os.remove),
        ("model.safetensors", lie_in_the_header),
        ("sub/config.json", os.remove),
        ("sub/config.json", cut),
    ],
)
def test_a_damaged_artifact_sets_its_manifest_aside_so_that_the_stage_runs_again(
    store, name, damage
):
    damage(in_artifact(store, published(store), name))
    assert store.find("sft", KEY) is None
    names = [p.name for p in store.stage_dir("sft", KEY).iterdir()]
    assert "manifest.json" not in names
    assert sum(n.startswith("manifest.corrupt-") for n in names) == 1
    again = draft(store, "a2", 3.0)
    assert store.publish(again)  # and its place is free
    assert store.find("sft", KEY) == again


@pytest.mark.parametrize("content", ["", "{", '{"stage": "sft"}', "[]"])
def test_a_manifest_that_is_not_one_is_set_aside(store, content):
    published(store)
    (store.stage_dir("sft", KEY) / "manifest.json").write_text(content)
    assert store.find("sft", KEY) is None
    assert not (store.stage_dir("sft", KEY) / "manifest.json").exists()


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_found_at_the_next_use(store):
    manifest = published(store)
    flip_a_bit(in_artifact(store, manifest, "model.safetensors"))
    with pytest.raises(IntegrityError, match=r"model\.safetensors: expected sha256"):
        store.verify(manifest)
    assert store.find("sft", KEY) is None


@pytest.mark.parametrize("name", ["../../x", "", ".", "a/b", "a.b", "/etc", "a\n"])
def test_no_name_leads_out_of_the_store(store, name):
    for stage, key in ((name, KEY), ("sft", name)):
        with pytest.raises(ConfigError, match=r"stage( key)?: expected letters, digits"):
            store.find(stage, key)
    with pytest.raises(ConfigError, match="expected an attempt as in 'a1'"):
        store.attempt("sft", KEY, name)


# ------------------------------------------------------------------ digests of files


def test_a_file_that_has_not_changed_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 100)
    reads = []
    real = stage_key.hashlib.file_digest
    monkeypatch.setattr(stage_key.hashlib, "file_digest", lambda *a: reads.append(a) or real(*a))
    fresh = digest_of_file(path)
    assert digest_of_file(path) == fresh
    assert len(reads) == 2  # it is of this moment, and may change without a sign
    os.utime(path, (1, 1))
    assert digest_of_file(path) == digest_of_file(path) == fresh
    assert len(reads) == 3
    path.write_bytes(b"y" * 100)
    assert digest_of_file(path) != fresh
    os.utime(path, (2, 2))
    assert digest_of_file(path) != fresh


def test_files_that_a_filesystem_leaves_belong_to_no_artifact(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").write_bytes(b"x")
    records, digest = record_files(tmp_path)
    assert digest == digest_of_tree(tmp_path)
    (tmp_path / "sub" / ".nfs0001").write_bytes(b"left over")
    assert record_files(tmp_path) == (records, digest)
    assert digest_of_tree(tmp_path) == digest


def test_the_digest_is_of_contents_and_names(store, tmp_path):
    one, two = draft(store, "a1", 1.0), draft(store, "a2", 1.0)
    other = draft(store, "a3", 2.0)
    assert one.digest == two.digest != other.digest
    assert record_files(tmp_path / "nothing") == ((), record_files(tmp_path / "nothing")[1])


def test_a_forced_stage_is_set_aside_once_per_flow_run(store):
    checkpoints = store.attempt("sft", KEY, "a1").checkpoints
    published(store)
    checkpoints.mkdir()
    store.set_aside("sft", KEY, once_for="run-1")
    assert store.find("sft", KEY) is None
    assert not checkpoints.exists()  # else it would only resume
    again = draft(store, "a2", 2.0)
    store.publish(again)
    store.set_aside("sft", KEY, once_for="run-1")  # the flow was retried
    assert store.find("sft", KEY) == again
    store.set_aside("sft", KEY, once_for="run-2")
    assert store.find("sft", KEY) is None


def test_a_stage_that_was_never_run_can_be_set_aside(store):
    store.set_aside("sft", KEY, once_for="run-1")
    assert published(store)


def test_attempts_are_listed_newest_first_by_number(store):
    for name in ("a1", "a2", "a10"):
        store.attempt("sft", KEY, name).directory.mkdir(parents=True)
    assert [attempt.name for attempt in store.attempts("sft", KEY)] == ["a10", "a2", "a1"]


def test_folders_that_a_person_left_beside_attempts_are_none(store):
    for name in ("a2", "a1", "a1x", "a1 (copy)", "a", "a-3", "a0", "attempt4", "b1"):
        (store.stage_dir("sft", KEY) / "attempts" / name).mkdir(parents=True)
    newest, oldest = store.attempts("sft", KEY)
    assert (newest.name, oldest.name) == ("a2", "a1")
    assert newest.siblings == (oldest,)
    store.set_aside("sft", KEY, once_for="run-1")


def test_where_an_attempt_is_and_what_its_files_are_called(store):
    attempt = store.attempt("sft", KEY, "a12")
    assert attempt.directory == store.root / "stages" / "sft" / KEY / "attempts" / "a12"
    assert (attempt.store_root, attempt.stage, attempt.key) == (store.root, "sft", KEY)
    assert (attempt.name, attempt.number, attempt.job_id) == ("a12", 12, f"sft-{KEY[:12]}-a12")
    names = {
        attempt.request: "request.json",
        attempt.log: "log.txt",
        attempt.log_of(3): "log-rank3.txt",
        attempt.metrics: "metrics.jsonl",
        attempt.progress: "progress.json",
        attempt.heartbeat: "heartbeat.json",
        attempt.error: "error.json",
        attempt.checkpoints: "checkpoints",
        attempt.artifact: "artifact",
        attempt.tensorboard: "tensorboard",
        attempt.universal: "universal",
        attempt.of_rank(0).artifact: "artifact",
        attempt.of_rank(2).artifact: "rank-2/artifact",
    }
    for path, name in names.items():
        assert path == attempt.directory / name
    assert Attempt.of_checkpoint(attempt.checkpoints / "step-00000005") == attempt


def test_manifests_are_listed_oldest_first(store):
    late = published(store, finished_at=5.0, key="x" * 64)
    early = published(store, finished_at=2.0, key="y" * 64)
    assert store.manifests() == [early, late]
