"""Policy, value, preference and reward losses on numbers worked out by hand."""

import math

import pytest
import torch

from training_core.algorithms.policy_losses import ppo_clip
from training_core.algorithms.preference_losses import dpo, ipo
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.value_losses import clipped_value_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        # inside the range: -r * A
        (1.1, 2.0, -2.2, False),
        (0.9, -2.0, 1.8, False),
        # A > 0: only a ratio above 1 + 0.3 is clipped: -1.3 * 2
        (1.5, 2.0, -2.6, True),
        (0.5, 2.0, -1.0, False),
        # A < 0: only a ratio below 1 - 0.2 is clipped: 0.8 * 2
        (0.5, -2.0, 1.6, True),
        (1.5, -2.0, 3.0, False),
    ],
)
def test_ppo_clips_only_the_side_that_would_gain(ratio, advantage, loss, is_clipped):
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found, clipped = ppo_clip(
        logprobs, zero, torch.full_like(zero, advantage), clip_low=0.2, clip_high=0.3
    )
    assert found.item() == pytest.approx(loss, abs=1e-12)
    assert clipped.item() is is_clipped
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    # d(-r A)/d logprob = -r A; nothing where clipped
    assert gradient.item() == pytest.approx(0.0 if is_clipped else -ratio * advantage, abs=1e-12)


def test_ppo_at_the_old_policy_has_the_policy_gradient():
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    advantages = torch.tensor([[0.5, -3.0]])
    loss, clipped = ppo_clip(logprobs, logprobs.detach(), advantages, clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(loss, -advantages)
    assert not clipped.any()
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logprobs)[0], -advantages)


def test_ppo_stays_finite_where_the_policies_are_worlds_apart():
    logprobs = torch.tensor([[-1.0, -2000.0]], requires_grad=True)
    old = torch.tensor([[-2000.0, -1.0]])
    loss, _ = ppo_clip(logprobs, old, torch.tensor([[1.0, 0.0]]), clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(loss, torch.tensor([[-1.2, 0.0]]))
    assert torch.isfinite(torch.autograd.grad(loss.sum(), logprobs)[0]).all()


def test_value_loss_inside_the_clip_is_half_the_squared_error():
    loss = clipped_value_loss(
        torch.tensor([[1.1]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]), clip=0.2
    )
    torch.testing.assert_close(loss, torch.tensor([[0.405]]))  # (1.1 - 2)^2 / 2


def test_value_loss_takes_the_worse_of_plain_and_clipped():
    values = torch.tensor([[1.5, 0.5]], requires_grad=True)
    loss = clipped_value_loss(
        values, torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]]), clip=0.2
    )
    # towards the return: plain (1.5-2)^2/2 = 0.125, clipped (1.2-2)^2/2 = 0.32 -> 0.32, no gradient
    # away from it:       plain (0.5-2)^2/2 = 1.125, clipped (0.8-2)^2/2 = 0.72 -> 1.125
    torch.testing.assert_close(loss, torch.tensor([[0.32, 1.125]]))
    torch.testing.assert_close(
        torch.autograd.grad(loss.sum(), values)[0], torch.tensor([[0.0, -1.5]])
    )


def test_dpo_is_ln_2_where_policy_and_reference_agree():
    for smoothing in (0.0, 0.2):
        loss = dpo(torch.zeros(3), torch.zeros(3), beta=0.1, label_smoothing=smoothing)
        torch.testing.assert_close(loss, torch.full((3,), math.log(2)))


def test_dpo_of_a_worked_pair():
    # margin = 0.5 * (1 - (-3)) = 2; -log sigmoid(2) = ln(1 + e^-2) = 0.126928
    loss = dpo(torch.tensor([1.0]), torch.tensor([-3.0]), beta=0.5, label_smoothing=0.0)
    assert loss.item() == pytest.approx(0.126928, abs=1e-6)


def test_dpo_with_label_smoothing_mixes_in_the_flipped_pair():
    # -0.9 * log sigmoid(2) - 0.1 * log sigmoid(-2) = 0.9 * 0.126928 + 0.1 * 2.126928 = 0.326928
    loss = dpo(torch.tensor([1.0]), torch.tensor([-3.0]), beta=0.5, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.326928, abs=1e-6)


def test_dpo_raises_the_chosen_and_lowers_the_rejected():
    chosen = torch.zeros(1, requires_grad=True)
    rejected = torch.zeros(1, requires_grad=True)
    loss = dpo(chosen, rejected, beta=0.1, label_smoothing=0.0).sum()
    gradients = torch.autograd.grad(loss, (chosen, rejected))
    # -beta * sigmoid(-0) = -0.05, and its opposite
    assert [g.item() for g in gradients] == pytest.approx([-0.05, 0.05])


def test_ipo_is_the_squared_distance_from_half_the_inverse_of_beta():
    # (2 - (-1) - 1 / 0.5)^2 = 1; (0 - 2)^2 = 4
    loss = ipo(torch.tensor([2.0, 0.0]), torch.tensor([-1.0, 0.0]), beta=0.25)
    torch.testing.assert_close(loss, torch.tensor([1.0, 4.0]))


def test_bradley_terry_of_a_worked_pair():
    # ln(1 + e^(1 - 3)) = 0.126928; centering 0.01 * (3 + 1)^2 = 0.16
    chosen, rejected = torch.tensor([3.0]), torch.tensor([1.0])
    assert bradley_terry(chosen, rejected, centering_coef=0.0).item() == pytest.approx(
        0.126928, abs=1e-6
    )
    assert bradley_terry(chosen, rejected, centering_coef=0.01).item() == pytest.approx(
        0.286928, abs=1e-6
    )


def test_bradley_terry_does_not_overflow_on_a_large_wrong_margin():
    loss = bradley_terry(torch.tensor([-500.0]), torch.tensor([500.0]), centering_coef=0.0)
    assert loss.item() == pytest.approx(1000.0)
