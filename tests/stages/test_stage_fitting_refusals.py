"""Settings of training that cannot work, and what the best of several evaluations is."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from stages.configs.training_config import (
    BestMetricConfig,
)
from stages.training.best_checkpoint import BestCheckpoint
from stages.training.engines import make_engine
from tests.stages.waves import StopAt, run, training, wave
from training_core.checkpoint import complete_checkpoints
from training_core.errors import ConfigError, StoppedError


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
    optimizer, engine = {"name": "muon"}, {"name": "deepspeed"}
    with pytest.raises(ValidationError, match="supports only the optimizer 'adamw', found 'muon'"):
        training(optimizer=optimizer, engine=engine)
    one, other = training(optimizer=optimizer).optimizer, training(engine=engine).engine
    with pytest.raises(ConfigError, match="supports only the optimizer 'adamw', found 'muon'"):
        make_engine(wave(), one, 10, other)
