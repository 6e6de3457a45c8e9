"""Estimators against the exact policy gradient of a policy over three tokens.

A response is one token, so every group of responses can be enumerated with its probability, and
the expectation of an estimated gradient is a finite sum.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.rounds import estimate
from training_core.algorithms.advantages import gae, token_rewards
from training_core.algorithms.corrections import CORRECTIONS
from training_core.algorithms.estimators import RoundRewards
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.policy_tokens import PolicyTokens
from training_core.objectives.reinforcement import KlLoss

REWARDS = torch.tensor([1.0, -0.5, 3.0], dtype=torch.float64)
REFERENCE = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
GREEDY = 2  # the most likely token of the policy below


def policy():
    logits = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(-1)


def gradient(value, logits):
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def exact_gradient(logits, logprobs):
    """Of the expected reward."""
    return gradient((logprobs.exp() * REWARDS).sum(), logits)


def exact_kl_gradient(logits, logprobs):
    """Of KL(policy || reference)."""
    return gradient((logprobs.exp() * (logprobs - REFERENCE)).sum(), logits)


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert float(expected.norm()) > 0.05


def expected_ascent(name, group_size, **hyperparameters):
    """Expectation over all groups of the mean of A * grad logprob, with the exact gradient."""
    logits, logprobs = policy()
    total = torch.zeros(())
    for tokens in product(range(3), repeat=group_size):
        ids = torch.tensor(tokens)
        rewards = RoundRewards(
            REWARDS[ids],
            torch.zeros(group_size, dtype=torch.int64),
            torch.zeros(group_size, 1, dtype=torch.float64),
            0.0,
            torch.ones(group_size, 1, dtype=torch.bool),
            greedy_rewards=REWARDS[GREEDY].expand(group_size),
        )
        advantages, _ = estimate(name, **hyperparameters)(rewards)
        probability = logprobs[ids].sum().exp().detach()
        total = total + probability * (advantages[:, 0] * logprobs[ids]).mean()
    return gradient(total, logits), exact_gradient(logits, logprobs)


@pytest.mark.parametrize("group_size", [2, 3])
def test_rloo_is_unbiased(group_size):
    assert_equal(*expected_ascent("rloo", group_size))


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_group_mean_with_the_response_itself_shrinks_the_gradient_and_does_not_turn_it(
    group_size,
):
    found, exact = expected_ascent("dr_grpo", group_size)
    assert_equal(found, exact * (group_size - 1) / group_size)


@pytest.mark.parametrize("group_size", [1, 2])
def test_remax_is_unbiased_with_any_group(group_size):
    assert_equal(*expected_ascent("remax", group_size))


def test_a_critic_that_is_wrong_leaves_gae_unbiased_where_lambda_is_one():
    logits, logprobs = policy()
    mask = torch.ones(3, 1, dtype=torch.bool)
    kl = torch.zeros(3, 1, dtype=torch.float64)
    rewards = token_rewards(REWARDS, kl, mask, kl_coef=0.0)
    values = torch.full((3, 1), 7.0, dtype=torch.float64)
    advantages, _ = gae(rewards, values, mask, gamma=1.0, gae_lambda=1.0)
    total = (logprobs.exp().detach() * advantages[:, 0] * logprobs).sum()
    assert_equal(gradient(total, logits), exact_gradient(logits, logprobs))


# ------------------------------------------------------------------ losses


LOSSES = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.2},
    "dual_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual": 3.0},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "gspo_token": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"max_ratio": 5.0},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "dppo_tv": {"limit_low": 0.2, "limit_high": 0.2, "max_ratio": 20.0},
    "dppo_kl": {"limit_low": 0.05, "limit_high": 0.05, "max_ratio": 20.0},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
}


def losses_of(name, logprobs, old_logprobs):
    """The loss of each token as a response of its own, with its reward as advantage: [3]."""
    mask = torch.ones(3, 1, dtype=torch.bool)
    tokens = PolicyTokens(logprobs[:, None], old_logprobs[:, None], REWARDS[:, None], mask)
    return POLICY_LOSSES[name].function(tokens, **LOSSES[name])[0][:, 0]


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_every_loss_descends_along_the_exact_policy_gradient(name):
    logits, logprobs = policy()
    old = logprobs.detach()
    total = (old.exp() * losses_of(name, logprobs, old)).sum()
    assert_equal(gradient(total, logits), -exact_gradient(logits, logprobs))


@pytest.mark.parametrize("name", ["ppo_clip", "cispo", "dppo_tv", "dppo_kl", "dual_clip"])
def test_a_loss_with_importance_weights_is_exact_off_policy_within_its_range(name):
    logits, logprobs = policy()
    old = (logprobs.detach().exp() + torch.tensor([0.03, -0.01, -0.02])).log()
    total = (old.exp() * losses_of(name, logprobs, old)).sum()
    assert_equal(gradient(total, logits), -exact_gradient(logits, logprobs))


# ------------------------------------------------------------------ sampler and trainer


@pytest.mark.parametrize("name", ["tis_token", "tis_sequence", "icepop", "sequence_mask"])
def test_a_correction_that_truncates_nothing_makes_a_foreign_sampler_unbiased(name):
    settings = {"icepop": {"low": 0.1, "high": 9.0}}.get(name, {"max_ratio": 9.0})
    logits, logprobs = policy()
    old, sampler = logprobs.detach(), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    losses = losses_of("ppo_clip", logprobs, old)
    mask = torch.ones(3, 1, dtype=torch.bool)
    weights = CORRECTIONS[name]((old - sampler)[:, None], mask, **settings)[:, 0]
    exact = -exact_gradient(logits, logprobs)
    assert_equal(gradient((sampler.exp() * weights * losses).sum(), logits), exact)
    without = gradient((sampler.exp() * losses).sum(), logits)
    assert float((without - exact).norm()) > 0.1 * float(exact.norm())


def test_the_samplers_log_probabilities_as_old_ones_make_it_unbiased_too():
    logits, logprobs = policy()
    sampler = (logprobs.detach().exp() + torch.tensor([0.03, -0.01, -0.02])).log()
    total = (sampler.exp() * losses_of("ppo_clip", logprobs, sampler)).sum()
    assert_equal(gradient(total, logits), -exact_gradient(logits, logprobs))


# ------------------------------------------------------------------ KL


def kl_in_reward(name, logits, logprobs):
    """Descent direction of the KL as a penalty in the reward, through PPO's loss."""
    old = logprobs.detach()
    mask = torch.ones(3, 1, dtype=torch.bool)
    penalty = -KL_ESTIMATORS[name](old, REFERENCE)
    tokens = PolicyTokens(logprobs[:, None], old[:, None], penalty[:, None], mask)
    losses, _ = POLICY_LOSSES["ppo_clip"].function(tokens, **LOSSES["ppo_clip"])
    return gradient((old.exp() * losses[:, 0]).sum(), logits)


def kl_in_loss(name, logits, logprobs):
    weights = logprobs.detach().exp()
    return gradient((weights * KL_ESTIMATORS[name](logprobs, REFERENCE)).sum(), logits)


def test_k1_in_the_reward_and_k2_in_the_loss_have_the_gradient_of_the_kl():
    logits, logprobs = policy()
    exact = exact_kl_gradient(logits, logprobs)
    assert_equal(kl_in_reward("k1", logits, logprobs), exact)
    assert_equal(kl_in_loss("k2", logits, logprobs), exact)


def test_k3_in_the_loss_has_the_gradient_of_the_forward_kl():
    logits, logprobs = policy()
    forward = (REFERENCE.exp() * (REFERENCE - logprobs)).sum()  # KL(reference || policy)
    assert_equal(kl_in_loss("k3", logits, logprobs), gradient(forward, logits))


def test_k1_in_the_loss_has_no_gradient():
    logits, logprobs = policy()
    found = kl_in_loss("k1", logits, logprobs)
    torch.testing.assert_close(found, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_have_another_gradient(name):
    logits, logprobs = policy()
    exact = exact_kl_gradient(logits, logprobs)
    found = kl_in_reward(name, logits, logprobs)
    assert float((found - exact).norm()) > 0.1 * float(exact.norm())


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_the_kl_in_the_loss_by_ratio_has_the_gradient_of_the_kl_off_policy_too(name):
    logits, logprobs = policy()
    old = (logprobs.detach().exp() + torch.tensor([0.05, -0.02, -0.03])).log()
    exact = exact_kl_gradient(logits, logprobs)
    mask = torch.ones(3, 1, dtype=torch.bool)
    tokens = PolicyTokens(logprobs[:, None], old[:, None], torch.zeros(3, 1), mask)

    def found(by_ratio):
        term = KlLoss(KL_ESTIMATORS[name], 1.0, by_ratio).per_token(tokens, REFERENCE[:, None])
        return gradient((old.exp() * term[:, 0]).sum(), logits)

    assert_equal(found(by_ratio=True), exact)
    assert float((found(by_ratio=False) - exact).norm()) > 0.1 * float(exact.norm())
