"""Policy losses on numbers worked out by hand."""

import math

import pytest
import torch

from training_core.algorithms.policy_losses import ppo_clip


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
