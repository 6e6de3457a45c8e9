"""The tables and the docstrings of the algorithms."""

import importlib
import inspect
import pkgutil
from typing import get_args

import pytest

import training_core.algorithms
from stages.configs.dpo_config import DpoConfig
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES
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
