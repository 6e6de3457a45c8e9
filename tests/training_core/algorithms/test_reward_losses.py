"""Reward losses on numbers worked out by hand, and their laws."""

import pytest
import torch

from training_core.algorithms.reward_losses import REWARD_LOSSES

BOTH = pytest.mark.parametrize("loss", REWARD_LOSSES.values(), ids=REWARD_LOSSES)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


@BOTH
def test_a_worked_pair(loss):
    # ln(1 + e^(1 - 3)) = 0.126928
    found = loss(numbers(3.0), numbers(1.0), centering_coef=0.0)
    assert found.item() == pytest.approx(0.126928, abs=1e-6)


@BOTH
def test_centering_pulls_the_sum_of_the_rewards_to_zero(loss):
    # 0.126928 + 0.01 * (3 + 1)^2 = 0.286928
    found = loss(numbers(3.0), numbers(1.0), centering_coef=0.01)
    assert found.item() == pytest.approx(0.286928, abs=1e-6)


@BOTH
def test_a_margin_asks_for_a_larger_difference(loss):
    # ln(1 + e^(1 - 3 + 0.5)) = 0.201413, ln(1 + e^(1 - 3 + 2)) = ln 2
    found = loss(numbers(3.0, 3.0), numbers(1.0, 1.0), numbers(0.5, 2.0), centering_coef=0.0)
    assert found.tolist() == pytest.approx([0.201413, 0.693147], abs=1e-6)


@BOTH
def test_a_large_wrong_difference_does_not_overflow(loss):
    rewards = torch.tensor([-5e3, 5e3], requires_grad=True)
    found = loss(rewards[:1], rewards[1:], centering_coef=0.0)
    assert found.item() == pytest.approx(1e4)
    assert torch.autograd.grad(found.sum(), rewards)[0].tolist() == [-1.0, 1.0]


@BOTH
def test_gradients_are_those_of_finite_differences(loss):
    generator = torch.Generator().manual_seed(0)
    chosen, rejected = torch.randn(2, 4, generator=generator, dtype=torch.float64).unbind()
    inputs = (chosen.clone().requires_grad_(), rejected.clone().requires_grad_())
    margin = numbers(0.0, 0.5, 1.0, 3.0)
    assert torch.autograd.gradcheck(lambda c, r: loss(c, r, margin, centering_coef=0.1), inputs)


def test_log_exp_is_bradley_terry():
    chosen = torch.linspace(-40, 40, 81, dtype=torch.float64)
    margin = torch.full_like(chosen, 0.25)
    # log(1 + exp(r- - r+ + margin)), with r- = -r+ and no centering
    as_written = torch.log1p(torch.exp(margin - 2 * chosen))
    found = REWARD_LOSSES["log_exp"](chosen, -chosen, margin, centering_coef=0.0)
    torch.testing.assert_close(found, as_written, rtol=1e-14, atol=0)
