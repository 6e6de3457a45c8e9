"""What is saved comes back; what is damaged or unfinished is invisible or refused."""

import json
import os

import pytest
import torch
from checkpoints import save, steps_below, weight_of

from training_core import checkpoint
from training_core.errors import IntegrityError


def test_what_was_saved_comes_back(tmp_path):
    saved = save(tmp_path, 5)
    (found,) = checkpoint.complete_checkpoints([tmp_path])
    assert found == saved
    weight, state = weight_of(found)
    assert weight == 5.0
    assert state["engines"]["m"].tolist() == [5.0, 5.0, 5.0]
    assert (state["note"], state["nested"]) == ("x", {"n": [1, 2]})


def test_tied_weights_come_back_tied(tmp_path, make_policy):
    policy, other = make_policy(seed=0), make_policy(seed=1)
    saved = checkpoint.save(tmp_path, 1, {"model": policy}, {}, keep=1)
    checkpoint.load(saved, {"model": other})
    assert torch.equal(other.lm_head.weight, policy.model.embed_tokens.weight)
    assert other.lm_head.weight.data_ptr() == other.model.embed_tokens.weight.data_ptr()


def test_only_the_newest_ones_stay(tmp_path):
    for step in (1, 2, 3, 10):
        save(tmp_path, step)
    assert steps_below(tmp_path) == [10, 3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000010"]


def test_a_protected_one_stays_however_old_it_is(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=1, protected=(2,))
    assert steps_below(tmp_path) == [4, 2]
    save(tmp_path, 5, keep=1, protected=(5,))  # a better one: the old best may go now
    assert steps_below(tmp_path) == [5]


def test_the_oldest_go_when_the_size_is_reached_and_the_newest_never(tmp_path):
    size = sum(p.stat().st_size for p in save(tmp_path, 1).directory.iterdir())
    gib = 2.5 * size / 2**30  # room for two
    for step in (2, 3, 4):
        save(tmp_path, step, keep=9, keep_gib=gib)
    assert steps_below(tmp_path) == [4, 3]
    save(tmp_path, 5, keep=9, keep_gib=gib, protected=(3,))  # the best counts, and stays
    assert steps_below(tmp_path) == [5, 3]
    save(tmp_path, 6, keep=9, keep_gib=gib / 100)
    assert steps_below(tmp_path) == [6]


def test_shards_are_part_of_a_checkpoint(tmp_path):
    def shards(directory):
        (directory / "engine").mkdir(parents=True)
        (directory / "engine" / "rank0.pt").write_bytes(b"moments")

    saved = save(tmp_path, 1, shards=shards)
    part = saved.directory / checkpoint.SHARDS / "engine" / "rank0.pt"
    assert part.read_bytes() == b"moments"
    assert weight_of(saved)[0] == 1.0
    part.write_bytes(b"momentS")
    with pytest.raises(IntegrityError, match=r"shards/engine/rank0\.pt: expected sha256"):
        weight_of(saved)
    part.unlink()
    assert steps_below(tmp_path) == []


def test_the_newest_of_several_attempts_comes_first(tmp_path):
    save(tmp_path / "a1", 7)
    save(tmp_path / "a2", 4)
    assert steps_below(tmp_path / "a2", tmp_path / "a1", tmp_path / "never") == [7, 4]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "COMPLETE").unlink(),
        lambda d: (d / "COMPLETE").write_text(""),
        lambda d: (d / "COMPLETE").write_text('{"step": 2'),
        lambda d: (d / "COMPLETE").write_text('{"step": 2}'),
        lambda d: (d / "state.pt").unlink(),
        lambda d: os.truncate(d / "state.pt", 100),
        lambda d: os.truncate(d / "model.safetensors", 0),
    ],
    ids=[
        "no marker", "empty marker", "half a marker", "marker without files",
        "no state", "short state", "empty model",
    ],
)  # fmt: skip
def test_a_torn_checkpoint_is_invisible_and_the_older_one_counts(tmp_path, damage):
    save(tmp_path, 1)
    damage(save(tmp_path, 2).directory)
    (found,) = checkpoint.complete_checkpoints([tmp_path])
    assert found.step == 1
    assert weight_of(found)[0] == 1.0


def test_an_abandoned_draft_is_invisible_and_does_not_stop_the_next_save(tmp_path):
    draft = tmp_path / ".draft-00000002"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"half")
    assert steps_below(tmp_path) == []
    save(tmp_path, 2)
    assert weight_of(checkpoint.complete_checkpoints([tmp_path])[0])[0] == 2.0
    assert not draft.exists()


def test_a_marker_that_promises_other_sizes_does_not_count(tmp_path):
    directory = save(tmp_path, 2).directory
    record = json.loads((directory / "COMPLETE").read_text())
    record["files"]["state.pt"] += 1
    (directory / "COMPLETE").write_text(json.dumps(record))
    assert steps_below(tmp_path) == []


def test_a_marker_that_no_save_wrote_is_told_and_the_older_checkpoint_counts(tmp_path, caplog):
    save(tmp_path, 1)
    directory = save(tmp_path, 2).directory
    marker = directory / "COMPLETE"
    written = json.loads(marker.read_text())
    markers = (
        [1, 2],
        {**written, "step": 100_000},
        {**written, "step": "2"},
        {**written, "step": True},
        {**written, "files": []},
        {**written, "files": {}},
        {**written, "files": {"../x": 1}, "sha256": {"../x": "0"}},
        {**written, "sha256": None},
    )
    for content in markers:
        caplog.clear()
        marker.write_text(json.dumps(content))
        assert steps_below(tmp_path) == [1], content
        (record,) = caplog.records
        assert str(marker) in record.getMessage()
        assert "delete this checkpoint" in record.getMessage()
        with pytest.raises(IntegrityError, match=r"COMPLETE: .*; delete this checkpoint"):
            weight_of(checkpoint.Checkpoint(directory, 2))
    marker.write_text(json.dumps(written))
    assert steps_below(tmp_path) == [2, 1]


def test_a_marker_without_the_state_is_not_loaded(tmp_path):
    directory = save(tmp_path, 2).directory
    (directory / "COMPLETE").write_text(json.dumps({"step": 2, "files": {}, "sha256": {}}))
    with pytest.raises(IntegrityError, match=r"COMPLETE: expected the file state\.pt in it"):
        weight_of(checkpoint.Checkpoint(directory, 2))


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_a_broken_header_is_an_integrity_error_that_names_the_file(tmp_path, name):
    saved = save(tmp_path, 2)
    path = saved.directory / name
    content = bytearray(path.read_bytes())
    content[:16] = b"\xff" * 16
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=rf"step-00000002.*{name}"):
        weight_of(saved)


def test_a_flipped_bit_in_the_weights_is_never_trained_on(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2).directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1000] ^= 0x40
    path.write_bytes(content)
    newest = checkpoint.complete_checkpoints([tmp_path])[0]
    if newest.step == 2:
        with pytest.raises(IntegrityError):
            weight_of(newest)
