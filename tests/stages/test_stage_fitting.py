"""Between two steps: average, evaluate, remember the best, save; and a killed run is no other."""

import os
import signal
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file
from torch import nn

from stages.attempt import Attempt
from stages.configs.training_config import (
    AdamWConfig,
    BestMetricConfig,
    ConstantOptimizerConfig,
    MuonConfig,
    OptimizerConfig,
    TrainingConfig,
)
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.training.best_checkpoint import BestCheckpoint
from stages.training.engines import make_engine
from stages.training.fit import fit
from training_core.checkpoint import complete_checkpoints
from training_core.errors import ConfigError, StoppedError
from training_core.types import Loss

TOTAL = 12


class Wave(nn.Module):
    """A small network with a random part, so that every random number counts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return x


def wave():
    torch.manual_seed(3)
    return Wave()


def squares(model, x):
    return Loss((model(x) - 1.0).square().sum(), float(len(x)))


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(n, 4, generator=generator) for n in (3, 1)]


def training(**changes):
    settings = {
        "epochs": 1, "batch_size": 1, "save_every_steps": 2, "optimizer": {"learning_rate": 0.05},
        **changes,
    }  # fmt: skip
    return TrainingConfig.model_validate(settings)


EVERYTHING = {
    "optimizer": {"name": "muon", "learning_rate": 0.05, "schedule": "wsd", "min_ratio": 0.1},
    "ema_decay": 0.8,
    "eval_every_steps": 3,
    "best_metric": {"metric": "distance", "better": "min"},
    "export": "best",
}


def context_of(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    return Context(Attempt(folder), FileSink(Attempt(folder), "sft"), **changes)


def distance(model):
    """Measures the model with random numbers of its own."""

    def evaluate():
        assert not model.training
        assert not torch.is_grad_enabled()
        noise = torch.rand(())
        first = model.layers[0].weight
        return {"distance": float((first - 0.2).square().sum()), "noise": float(noise)}

    return evaluate


def run(folder, settings, *, evaluate=distance, **changes):
    model = wave()
    torch.manual_seed(11)
    fit(
        model,
        squares,
        batch_of,
        num_examples=TOTAL,
        training=settings,
        context=context_of(folder, **changes),
        evaluate=evaluate(model) if evaluate else None,
    )
    return model.state_dict()


def curve(folder):
    return [(line["step"], line["metrics"]) for line in read_jsonl(folder / "metrics.jsonl")]


def assert_same(found, expected):
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


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


@dataclass
class StopAt:
    """Asks to stop after so many questions, which come once per step."""

    left: int

    def __call__(self):
        self.left -= 1
        return self.left <= 0


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
        fit(
            model,
            squares,
            batch_of,
            num_examples=TOTAL,
            training=training(ema_decay=0.8),
            context=context_of(folder, **changes),
        )
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


# ------------------------------------------------------------------ what is refused


def test_an_evaluation_that_does_not_exist_is_asked_for_by_nobody(tmp_path):
    with pytest.raises(ConfigError, match="eval_every_steps and best_metric need an evaluation"):
        run(tmp_path, training(eval_every_steps=2), evaluate=None)


def test_a_metric_that_was_not_measured_names_the_nearest(tmp_path):
    settings = training(best_metric={"metric": "distanse"})
    with pytest.raises(ConfigError, match=r"no metric 'distanse' .*did you mean 'distance'"):
        run(tmp_path, settings)


def test_the_best_of_nothing_cannot_be_exported():
    with pytest.raises(ValidationError, match="export: best needs best_metric"):
        training(export="best")
    with pytest.raises(ValidationError, match="export: best needs eval_every_steps"):
        training(export="best", best_metric={"metric": "distance"})


def test_the_first_of_equals_and_no_nan_is_best():
    best = BestCheckpoint(BestMetricConfig(metric="x", better="min"))
    assert [best.takes(s, {"x": v}) for s, v in enumerate([float("nan"), 2, 2, 1, 3])] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert (best.step, best.value) == (3, 1.0)


def test_a_checkpoint_of_another_engine_is_refused_and_says_so(tmp_path):
    with pytest.raises(StoppedError):
        run(tmp_path, training(), should_stop=StopAt(2))
    directory = complete_checkpoints([tmp_path / "checkpoints"])[0].directory
    from training_core import checkpoint

    found = replace(checkpoint.complete_checkpoints([tmp_path / "checkpoints"])[0])
    state = checkpoint.load(found, {"model": wave()})
    state["engines"]["engine"]["kind"] = "deepspeed"
    checkpoint.save(directory.parent, found.step, {"model": wave()}, state, keep=1)
    with pytest.raises(ConfigError, match=r"made by the engine 'deepspeed'.*is 'torch'"):
        run(tmp_path, training())


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"zero_stage": 2, "offload_parameters": True}, "offload_parameters needs zero_stage 3"),
        ({"zero_stage": 0, "offload_optimizer": True}, "needs zero_stage 1, 2 or 3, found 0"),
        ({"zero_stage": 3, "tensor_parallel_size": 2}, "needs zero_stage 1 or 2, found 3"),
        ({"zero_stage": 4}, "Input should be 0, 1, 2 or 3"),
    ],
)
def test_settings_that_deepspeed_would_refuse_are_refused_when_they_are_read(engine, why):
    with pytest.raises(ValidationError, match=why):
        training(engine={"name": "deepspeed", **engine})


def test_deepspeed_has_no_muon():
    settings = training(optimizer={"name": "muon"}, engine={"name": "deepspeed"})
    with pytest.raises(ConfigError, match="has the optimizer 'adamw' alone, found 'muon'"):
        make_engine(wave(), settings.optimizer, 10, settings.engine)


# ------------------------------------------------------------------ the optimizers' union


def test_an_optimizer_without_a_name_is_adamw():
    adapter = TypeAdapter(OptimizerConfig)
    assert adapter.validate_python({"learning_rate": 1e-3}) == AdamWConfig(learning_rate=1e-3)
    assert isinstance(adapter.validate_python({"name": "muon"}), MuonConfig)
    assert adapter.validate_python(MuonConfig()) == MuonConfig()
    assert adapter.validate_python(AdamWConfig().model_dump(mode="json")) == AdamWConfig()
    with pytest.raises(ValidationError, match=r"'moun' found using .* does not match"):
        adapter.validate_python({"name": "moun"})
    with pytest.raises(ValidationError, match=r"adamw\.momentum"):
        adapter.validate_python({"momentum": 0.9})  # AdamW has none


def test_reinforcement_learning_starts_from_a_constant_rate():
    adapter = TypeAdapter(ConstantOptimizerConfig)
    assert adapter.validate_python({"learning_rate": 1e-3}).schedule == "constant"
    assert adapter.validate_python({"name": "muon"}).schedule == "constant"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_setting_of_an_optimizer_reaches_it(name):
    settings = training(optimizer={"name": name, "betas": (0.8, 0.9), "eps": 0.25}).optimizer
    engine = make_engine(wave(), settings, 10)
    groups = [g for o in engine.state_dict()["optimizers"] for g in o["param_groups"]]
    assert {g["betas"] for g in groups if "betas" in g} == {(0.8, 0.9)}
    assert {g["eps"] for g in groups if "betas" in g} == {0.25}
    assert len(engine.state_dict()["optimizers"]) == {"adamw": 1, "muon": 2}[name]
