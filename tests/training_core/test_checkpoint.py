"""Checkpoints are complete or invisible, whatever the moment of death."""

import json
import os
import resource
import shutil
import signal
import sys

import pytest
import torch
from torch import nn

from training_core import checkpoint
from training_core.errors import IntegrityError, StorageFullError


def model_of(value):
    """Large enough that its bytes do not fit into one disk block."""
    model = nn.Linear(64, 64)
    nn.init.constant_(model.weight, value)
    return model


def save(root, step, keep=2, **settings):
    state = {"engines": {"m": torch.full((3,), float(step))}, "note": "x", "nested": {"n": [1, 2]}}
    model = {"model": model_of(float(step))}
    return checkpoint.save(root, step, model, state, keep=keep, **settings)


def steps_below(*roots):
    return [c.step for c in checkpoint.complete_checkpoints(roots)]


def weight_of(found):
    model = model_of(0.0)
    state = checkpoint.load(found, {"model": model})
    return model.weight[0, 0].item(), state


def in_child(body):
    """Run `body` in a process of its own; return its wait status."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - the parent looks at the exit code alone
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


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


WRITES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def die_at_write(number):
    """Let this process kill itself at its `number`-th opening, renaming or removing."""
    count = 0

    def watch(event, _):
        nonlocal count
        if event in WRITES:
            count += 1
            if count > number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


@pytest.mark.parametrize("keep", [1, 2])
def test_killed_at_any_write_a_checkpoint_that_loads_is_there(tmp_path, keep):
    save(tmp_path / "pristine", 1)
    seen = set()
    for number in range(200):
        root = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "pristine", root)

        def body(number=number, root=root):
            die_at_write(number)
            save(root, 2, keep=keep)

        status = in_child(body)
        found = checkpoint.complete_checkpoints([root])[0]
        assert weight_of(found)[0] == float(found.step)
        seen.add(found.step)
        assert steps_below(save(root, 3).directory.parent)[0] == 3  # and the next save works
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert status == 0
    assert number > 10  # it was killed at that many places
    assert seen == {1, 2}


def test_killed_while_a_step_is_saved_again_a_checkpoint_that_loads_is_there(tmp_path):
    save(tmp_path / "pristine", 2)
    for number in range(200):
        root = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "pristine", root)

        def body(number=number, root=root):
            die_at_write(number)
            save(root, 2, keep=1)

        status = in_child(body)
        assert weight_of(checkpoint.complete_checkpoints([root])[0])[0] == 2.0
        save(root, 2, keep=1)
        assert [p.name for p in root.iterdir()] == ["step-00000002"]  # nothing is left over
        if status == 0:
            break
    assert status == 0
    assert number > 10


def save_with_a_full_disk(root, limit_bytes):
    """Try to save where no file may grow beyond `limit_bytes`; exit as the outcome says."""

    def body():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
        try:
            save(root, 2)
        except StorageFullError:
            os._exit(40)

    return os.waitstatus_to_exitcode(in_child(body))


# The weights are 64 * 64 * 4 bytes = 16 KiB; the state and the marker are smaller.
def test_a_full_disk_under_the_weights_is_a_storage_full_error(tmp_path):
    save(tmp_path, 1)
    assert save_with_a_full_disk(tmp_path, 8000) == 40


def test_a_full_disk_under_the_optimizer_state_is_a_storage_full_error(tmp_path):
    save(tmp_path, 1)

    def body():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            state = {"moments": torch.ones(100_000)}  # 400 kB
            checkpoint.save(tmp_path, 2, {"model": model_of(2.0)}, state, keep=2)
        except StorageFullError:
            os._exit(40)

    assert os.waitstatus_to_exitcode(in_child(body)) == 40


@pytest.mark.parametrize("limit_bytes", [100, 8000])
def test_a_full_disk_leaves_the_earlier_checkpoint_as_it_was(tmp_path, limit_bytes):
    save(tmp_path, 1)
    assert save_with_a_full_disk(tmp_path, limit_bytes) != 0
    (found,) = checkpoint.complete_checkpoints([tmp_path])
    assert found.step == 1
    assert weight_of(found)[0] == 1.0


def test_a_full_disk_is_not_filled_further_by_what_could_not_be_saved(tmp_path):
    save(tmp_path, 1)
    save_with_a_full_disk(tmp_path, 8000)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
