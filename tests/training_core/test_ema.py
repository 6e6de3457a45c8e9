"""The average of weights, by hand."""

import copy

import pytest
import torch
from torch import nn

from tests.tolerances import rounding
from training_core.ema import WeightAverage
from training_core.errors import IntegrityError


def model_of(value, dtype=torch.float32):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, value)
    return model


def set_to(model, value):
    nn.init.constant_(model.weight, value)


def test_the_average_follows_the_weights_by_its_decay():
    model = model_of(1.0)
    average = WeightAverage(model, decay=0.9)
    for value in (2.0, 4.0):
        set_to(model, value)
        average.update(model)
    # 1 -> 0.9 * 1 + 0.1 * 2 = 1.1 -> 0.9 * 1.1 + 0.1 * 4 = 1.39
    assert average.state_dict()["weight"].item() == pytest.approx(1.39)
    assert model.weight.item() == 4.0
    average.write_to(model)
    assert model.weight.item() == pytest.approx(1.39)


def test_the_weights_come_back_exactly_when_the_average_has_been_looked_at():
    model = model_of(1.0)
    average = WeightAverage(model, decay=0.5)
    set_to(model, 3.0)
    average.update(model)
    with average.in_place_of(model):
        assert model.weight.item() == 2.0
    assert model.weight.item() == 3.0


def test_the_average_is_kept_in_single_precision():
    model = model_of(1.0, torch.bfloat16)
    average = WeightAverage(model, decay=0.999)
    set_to(model, 2.0)
    for _ in range(10):
        average.update(model)
    # 2 - 0.999^10 = 1.00996; in bfloat16, whose step at 1 is 1/128, it would not have moved
    assert average.state_dict()["weight"].dtype == torch.float32
    room = rounding(torch.float32, 10 * 3, 2.0)  # ten times a difference, a product and a sum
    assert average.state_dict()["weight"].item() == pytest.approx(2 - 0.999**10, abs=room)
    average.write_to(model)
    assert model.weight.dtype == torch.bfloat16


def test_a_frozen_weight_has_no_average():
    model = nn.Sequential(model_of(1.0), model_of(2.0))
    model[0].requires_grad_(False)
    assert list(WeightAverage(model, 0.5).state_dict()) == ["1.weight"]


def test_a_restored_average_is_the_same_bit_for_bit():
    model = model_of(0.1)
    average = WeightAverage(model, decay=0.7)
    set_to(model, 0.3)
    average.update(model)
    saved = copy.deepcopy(average.state_dict())
    fresh = WeightAverage(model_of(9.0), decay=0.7)
    fresh.load_state_dict(saved)
    set_to(model, -1.7)
    average.update(model)
    fresh.update(model)
    assert torch.equal(fresh.state_dict()["weight"], average.state_dict()["weight"])
    with pytest.raises(IntegrityError, match="belongs to another model"):
        fresh.load_state_dict({"bias": torch.zeros(1)})
