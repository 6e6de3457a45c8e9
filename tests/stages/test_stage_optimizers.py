"""The optimizers of a config, told apart by their names."""

import pytest
from pydantic import TypeAdapter, ValidationError

from stages.configs.training_config import (
    AdamWConfig,
    ConstantOptimizerConfig,
    MuonConfig,
    OptimizerConfig,
)
from stages.training.engines import make_engine
from tests.stages.waves import training, wave


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
