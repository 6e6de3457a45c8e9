"""The tables and the docstrings of the algorithms."""

import importlib
import inspect
import pkgutil
from typing import get_args

import pytest
from pydantic import BaseModel

import training_core.algorithms
from stages.configs.dpo_config import DpoConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_rules import HAS_GRADIENT_IN_LOSS
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.corrections import CORRECTIONS
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES
from training_core.algorithms.value_losses import VALUE_LOSSES
from training_core.schedules import SCHEDULES

MODULES = [
    importlib.import_module(f"training_core.algorithms.{m.name}")
    for m in pkgutil.iter_modules(training_core.algorithms.__path__)
]
FUNCTIONS = [
    function
    for module in MODULES
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
]
PLAIN_SUMS = {"masked_sum", "masked_mean"}
"""Need no paper."""


def loss_configs():
    annotation = DpoConfig.model_fields["loss"].annotation
    return {m.model_fields["name"].default: m for m in get_args(annotation) or (annotation,)}


def test_the_names_of_the_preference_losses_are_those_of_the_config():
    assert set(PREFERENCE_LOSSES) == set(loss_configs())
    assert DpoConfig().loss.name in PREFERENCE_LOSSES


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_a_preference_loss_takes_exactly_the_fields_of_its_config(name):
    parameters = inspect.signature(PREFERENCE_LOSSES[name].function).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert keywords == set(loss_configs()[name].model_fields) - {"name"}
    assert all(p.default is p.empty for p in parameters)  # defaults live in the config alone


RL_TABLES = {
    "advantage": {name: row.function for name, row in ADVANTAGES.items()},
    "policy_loss": {name: row.function for name, row in POLICY_LOSSES.items()},
    "value_loss": VALUE_LOSSES,
    "correction": CORRECTIONS,
}
RL_ENTRIES = [(field, name) for field, table in RL_TABLES.items() for name in table]


def rl_configs(field):
    """Name -> config class of a union of blocks in `PpoConfig`."""
    found = models_in(PpoConfig.model_fields[field].annotation)
    return {m.model_fields["name"].default: m for m in found}


def models_in(annotation):
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in get_args(annotation) for m in models_in(argument)]


@pytest.mark.parametrize("field", list(RL_TABLES))
def test_the_names_of_the_rl_algorithms_are_those_of_the_config(field):
    assert list(RL_TABLES[field]) == list(rl_configs(field))


@pytest.mark.parametrize(("field", "name"), RL_ENTRIES)
def test_an_rl_algorithm_takes_exactly_the_fields_of_its_config(field, name):
    parameters = inspect.signature(RL_TABLES[field][name]).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert keywords == set(rl_configs(field)[name].model_fields) - {"name"}
    assert all(p.default is p.empty for p in parameters)  # defaults live in the config alone


def test_the_facts_of_an_algorithm_are_the_same_in_its_table_and_its_config():
    for name, config in rl_configs("advantage").items():
        for fact in ("needs_critic", "needs_group", "needs_greedy", "needs_parts"):
            assert getattr(config, fact) == getattr(ADVANTAGES[name], fact), (name, fact)
    for name, config in rl_configs("policy_loss").items():
        assert config.is_of_sequence == POLICY_LOSSES[name].is_of_sequence, name


def test_the_names_of_aggregations_and_kl_estimators_are_those_of_the_config():
    fields = PpoConfig.model_fields
    assert set(get_args(fields["aggregation"].annotation)) == set(AGGREGATIONS)
    assert set(get_args(fields["kl_estimator"].annotation)) == set(KL_ESTIMATORS)
    assert HAS_GRADIENT_IN_LOSS.keys() == KL_ESTIMATORS.keys()


def test_the_names_of_the_schedules_are_those_of_the_config():
    from stages.configs.training_config import AdamWConfig

    assert set(get_args(AdamWConfig.model_fields["schedule"].annotation)) == set(SCHEDULES)


def test_there_are_algorithms():
    assert len(MODULES) >= 8
    assert len(FUNCTIONS) >= 12


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_algorithm_says_what_it_takes_what_it_returns_and_where_it_is_from(function):
    text = inspect.getdoc(function) or ""
    assert text.splitlines()[0].endswith(".")
    assert "Args:" in text
    assert "Returns:" in text
    if function.__name__ not in PLAIN_SUMS:
        assert "Source:" in text
    documented = text.split("Args:")[1].split("Returns:")[0]
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in documented, parameter
