"""Between two steps: average, evaluate, remember the best, save; and a killed run is no other."""

import os
import signal
import sys

import pytest
import torch
from safetensors.torch import load_file

from stages.attempt import Attempt
from stages.training.fit import fit
from stages.training.trained_model import TrainedModel
from tests.stages.waves import (
    EVERYTHING,
    TOTAL,
    StopAt,
    assert_same,
    batch_of,
    context_of,
    curve,
    run,
    squares,
    training,
    wave,
)
from training_core.checkpoint import complete_checkpoints
from training_core.errors import StoppedError


def test_evaluating_changes_nothing_that_is_trained(tmp_path):
    plain = run(tmp_path / "plain", training(), evaluate=None)
    watched = run(tmp_path / "watched", training(eval_every_steps=1))
    assert_same(watched, plain)
    losses = [[m["sft/loss"] for _, m in curve(tmp_path / name)] for name in ("plain", "watched")]
    assert losses[0] == losses[1]


def test_evaluations_come_when_they_are_due_and_after_the_last_step(tmp_path):
    run(tmp_path / "five", training(eval_every_steps=5))
    run(tmp_path / "end", training())
    for name, due in (("five", [5, 10, 12]), ("end", [12])):
        measured = [step for step, m in curve(tmp_path / name) if "sft/distance" in m]
        assert measured == due


def test_the_average_is_evaluated_and_exported(tmp_path):
    plain = run(tmp_path / "plain", training())
    averaged = run(tmp_path / "averaged", training(ema_decay=0.8))
    assert not torch.equal(plain["layers.0.weight"], averaged["layers.0.weight"])
    last = curve(tmp_path / "averaged")[-1][1]["sft/distance"]
    exported = float((averaged["layers.0.weight"] - 0.2).square().sum())
    assert last == pytest.approx(exported, rel=1e-6)


def test_a_decay_of_zero_averages_nothing(tmp_path):
    assert_same(run(tmp_path / "zero", training(ema_decay=0.0)), run(tmp_path / "none", training()))


def script(*values):
    """An evaluation that gives these values, one after the other."""
    left = list(values)
    return lambda model: lambda: {"score": left.pop(0)}


def steps_kept(folder):
    return [c.step for c in complete_checkpoints([folder / "checkpoints"])]


SCORED = {"eval_every_steps": 3, "best_metric": {"metric": "score", "better": "max"}}


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path):
    settings = training(**SCORED, keep_checkpoints=1)
    run(tmp_path, settings, evaluate=script(0.1, 0.9, 0.2, 0.3))  # at 3, 6, 9 and 12
    assert steps_kept(tmp_path) == [10, 6]


def test_the_best_weights_become_the_artifact_if_asked(tmp_path):
    best = run(
        tmp_path / "best", training(**SCORED, export="best"), evaluate=script(0.1, 0.9, 0.2, 0.3)
    )
    half = run(tmp_path / "half", training(**SCORED), evaluate=script(0.1, 0.9, 0.2, 0.3))
    kept = complete_checkpoints([tmp_path / "half" / "checkpoints"])[-1]
    assert kept.step == 6
    from safetensors.torch import load_file

    assert_same(best, load_file(kept.directory / "model.safetensors"))
    assert not torch.equal(best["layers.0.weight"], half["layers.0.weight"])
    last = run(
        tmp_path / "last", training(**SCORED, export="best"), evaluate=script(0.1, 0.2, 0.3, 0.9)
    )
    assert_same(last, half)


def test_a_resumed_run_remembers_the_best(tmp_path):
    # OpenRLHF PR #1333: a worse evaluation after a resume took the place of the best one.
    settings = training(**SCORED, keep_checkpoints=1, export="best")
    first = tmp_path / "a1"
    with pytest.raises(StoppedError, match="stopped at step 7 of 12"):
        run(first, settings, evaluate=script(0.1, 0.9), should_stop=StopAt(7))
    assert steps_kept(first) == [7, 6]
    second = tmp_path / "a2"
    found = run(second, settings, evaluate=script(0.2, 0.3), earlier_attempts=(Attempt(first),))
    undisturbed = run(tmp_path / "b", settings, evaluate=script(0.1, 0.9, 0.2, 0.3))
    assert_same(found, undisturbed)  # the weights of step 6, which only the first attempt has
    assert steps_kept(second) == [10]


def test_every_state_survives_a_stop_at_any_step(tmp_path):
    settings = training(**EVERYTHING)
    undisturbed = run(tmp_path / "peace", settings)
    for stop in range(1, TOTAL + 1):
        first = tmp_path / f"a{stop}"
        with pytest.raises(StoppedError):
            run(first, settings, should_stop=StopAt(stop))
        second = tmp_path / f"b{stop}"
        assert_same(run(second, settings, earlier_attempts=(Attempt(first),)), undisturbed)
        assert curve(second) == curve(tmp_path / "peace")


def test_a_checkpoint_has_what_is_trained_and_a_frozen_base_comes_from_where_it_came_from(tmp_path):
    def frozen_run(folder, **changes):
        model = wave()
        model.layers[1].requires_grad_(False)
        context = context_of(folder, **changes)
        trained = TrainedModel(model, TOTAL, training(ema_decay=0.8), context)
        fit(trained, squares, batch_of)
        return model.state_dict()

    undisturbed = frozen_run(tmp_path / "peace")
    with pytest.raises(StoppedError):
        frozen_run(tmp_path / "a1", should_stop=StopAt(7))
    newest = complete_checkpoints([tmp_path / "a1/checkpoints"])[0].directory
    assert sorted(load_file(newest / "model.safetensors")) == ["layers/0/bias", "layers/0/weight"]
    resumed = frozen_run(tmp_path / "a2", earlier_attempts=(Attempt(tmp_path / "a1"),))
    assert_same(resumed, undisturbed)
    assert torch.equal(resumed["layers.1.weight"], wave().layers[1].weight)


WRITES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def run_and_die(folder, settings, number):
    """Run in a child that kills itself at its `number`-th write below `folder`."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def watch(event, args):
        nonlocal count
        if event in WRITES and str(folder) in str(args[:1]):
            count += 1
            if count > number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    try:
        run(folder, settings)
    except BaseException as error:  # noqa: BLE001 - the parent looks at the exit code alone
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
    os._exit(0)


def test_a_run_that_is_killed_at_any_write_ends_bit_for_bit_as_an_undisturbed_one(tmp_path):
    settings = training(**EVERYTHING, keep_checkpoints=1)
    undisturbed = run(tmp_path / "peace", settings)
    deaths = 0
    for number in range(3, 400, 23):  # during saves, between them, in the curve
        folder = tmp_path / f"killed-{number}"
        status = run_and_die(folder, settings, number)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        deaths += 1
        assert_same(run(folder, settings), undisturbed)
        assert curve(folder) == curve(tmp_path / "peace")
    assert status == 0
    assert deaths >= 5
