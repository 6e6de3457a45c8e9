"""Checkpoints are complete or invisible, whatever the moment of death."""

import os
import resource
import shutil
import signal
import sys

import pytest
import torch
from checkpoints import model_of, save, steps_below, weight_of

from training_core import checkpoint
from training_core.errors import StorageFullError


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
