"""AdamW on one process: division, clipping, decay, and a state that is the whole state."""

import copy

import pytest
import torch
from torch import nn

from training_core.engine.torch_engine import TorchEngine


def engine_of(model, **settings):
    return TorchEngine(
        model, **{"learning_rate": 0.1, "schedule": lambda step: 1 / (1 + step), **settings}
    )


def take_steps(engine, inputs):
    for x in inputs:
        engine.backward((engine.model(x) ** 2).sum())
        engine.step(count=4)


def test_the_norm_is_of_the_divided_gradient_before_clipping():
    model = nn.Linear(2, 1, bias=False)
    engine = engine_of(model, max_grad_norm=0.1)
    engine.backward((model.weight * torch.tensor([[6.0, 8.0]])).sum())
    assert engine.step(count=2) == pytest.approx(5.0)  # |(3, 4)|


def test_the_first_step_of_adam_is_the_learning_rate_whatever_the_gradient():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    engine = engine_of(model)
    engine.backward(model.weight.sum() * 1000)
    engine.step(count=1)
    assert model.weight.item() == pytest.approx(0.9, abs=1e-6)


def test_decay_is_decoupled_and_on_matrices_only():
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, 1.0)
    engine = engine_of(model, weight_decay=0.5)
    engine.backward((model.weight.sum() + model.bias.sum()) * 0)
    engine.step(count=1)
    assert model.weight.item() == pytest.approx(0.95)  # 1 - 0.1 * 0.5
    assert model.bias.item() == 1.0


def test_the_gradient_is_cleared_after_a_step():
    model = nn.Linear(1, 1)
    engine = engine_of(model)
    take_steps(engine, [torch.ones(1, 1)])
    assert all(p.grad is None for p in model.parameters())


def test_a_frozen_parameter_stays_as_it_is():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    take_steps(engine_of(model, weight_decay=0.1), [torch.ones(1, 2)])
    assert torch.equal(model[0].weight, before)


def test_a_restored_engine_goes_on_bit_for_bit():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = [torch.randn(2, 3) for _ in range(6)]
    undisturbed = engine_of(copy.deepcopy(model))
    take_steps(undisturbed, inputs)

    first = engine_of(copy.deepcopy(model))
    take_steps(first, inputs[:3])
    second = engine_of(copy.deepcopy(first.model))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.learning_rate == first.learning_rate == pytest.approx(0.1 / 4)
    take_steps(second, inputs[3:])
    assert torch.equal(second.model.weight, undisturbed.model.weight)

    forgetful = engine_of(copy.deepcopy(first.model))  # and the state is what makes it so
    take_steps(forgetful, inputs[3:])
    assert not torch.equal(forgetful.model.weight, undisturbed.model.weight)


# ------------------------------------------- weights in half precision


def half_and_single():
    """One model in bfloat16, and in float32 with the same rounded weights."""
    torch.manual_seed(0)
    half = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).bfloat16()
    return half, copy.deepcopy(half).float()


def small_steps(model, steps, **settings):
    """Steps of 1e-5 down the same slope, far below the distance of two bfloat16 weights."""
    engine = engine_of(model, learning_rate=1e-5, schedule=lambda _: 1.0, **settings)
    for _ in range(steps):
        engine.backward(sum(p.sum() for p in model.parameters()))
        engine.step(count=1)
    return engine


def test_small_steps_of_a_bfloat16_model_add_up_as_in_float32():
    half, single = half_and_single()
    start = single[0].weight.detach().clone()
    small_steps(half, 60)
    small_steps(single, 60)
    assert torch.equal(half[0].weight, single[0].weight.bfloat16())
    moved = (start - half[0].weight.detach().float()).mean().item()
    assert moved == pytest.approx(60 * 1e-5, rel=0.1)  # in bfloat16 alone about 2e-6


def test_gradients_of_a_bfloat16_model_are_added_up_in_float32():
    half, _ = half_and_single()
    engine = engine_of(half, max_grad_norm=1e9)
    parameters = sum(p.numel() for p in half.parameters())
    for part in (256.0, 1.0, 1.0):  # in bfloat16 256 + 1 = 256
        engine.backward(part * sum(p.sum() for p in half.parameters()))
    assert engine.step(count=1) == pytest.approx(258 * parameters**0.5)


def test_a_restored_engine_in_bfloat16_goes_on_bit_for_bit():
    half, _ = half_and_single()
    first = small_steps(half, 3)
    second = engine_of(copy.deepcopy(half), learning_rate=1e-5, schedule=lambda _: 1.0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for engine in (first, second):
        for _ in range(80):
            engine.backward(sum(p.sum() for p in engine.model.parameters()))
            engine.step(count=1)
    assert torch.equal(first.model[0].weight, second.model[0].weight)
    ours, theirs = (engine.state_dict()["masters"] for engine in (first, second))
    assert all(map(torch.equal, ours, theirs))


def test_weights_in_single_precision_have_no_copies():
    _, single = half_and_single()
    assert engine_of(single).state_dict()["masters"] == []
