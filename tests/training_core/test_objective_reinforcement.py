"""The policy's objective: each of its terms, on its own and together."""

from functools import partial

import pytest
import torch

from training_core.algorithms.aggregation import token_mean
from training_core.algorithms.kl import k2, k3
from training_core.algorithms.policy_losses import ppo_clip
from training_core.data.batching import collate
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.models.causal_lm import logprobs_and_entropy
from training_core.objectives.reinforcement import KlLoss, policy_objective
from training_core.types import Example, Experience

LOSS = partial(ppo_clip, clip_low=0.2, clip_high=0.2)
MEAN = partial(token_mean, max_tokens=1)


def experience_of(model, *, advantage=0.0, drift=0.0, weight=None, reference=None):
    """Two responses; the old log-probabilities are the model's, plus a drift."""
    rows = [Example((5, 6, 7, 8, 9), (0, 0, 1, 1, 1)), Example((5, 10, 11), (0, 0, 1))]
    batch = collate(rows, 0)
    mask = batch.loss_mask
    with torch.no_grad():
        logprobs, _ = logprobs_and_entropy(model, batch)
        ref = None if reference is None else logprobs_and_entropy(reference, batch)[0]
    zeros = torch.zeros_like(logprobs)
    weights = None if weight is None else mask * weight
    return Experience(batch, logprobs + drift * mask, advantage * mask, zeros, zeros, ref, weights)


def test_the_terms_are_added_token_by_token(make_policy):
    policy, reference = make_policy(seed=0), make_policy(seed=1)
    experience = experience_of(policy, advantage=2.0, drift=-0.1, weight=0.5, reference=reference)
    objective = policy_objective(
        LOSS, MEAN, temperature=1.0, entropy_coef=0.3, kl_loss=KlLoss(k3, 0.7)
    )
    loss = objective(policy, experience)
    mask = experience.batch.loss_mask
    with torch.no_grad():
        logprobs, entropy = logprobs_and_entropy(policy, experience.batch)
    # the ratio exp(0.1) is inside the clip; the weight belongs to the policy loss alone
    kl = k3(logprobs, experience.ref_logprobs)
    expected = (-torch.exp(torch.tensor(0.1)) * 2.0 * 0.5 + 0.7 * kl - 0.3 * entropy)[mask].sum()
    assert float(loss.total) == pytest.approx(float(expected), rel=1e-5)
    assert loss.count == 4
    assert loss.metrics["kl_loss"].value == pytest.approx(float(kl[mask].mean()), rel=1e-5)
    assert loss.metrics["clip_fraction"].value == 0.0


def after_a_step(policy, objective, experience):
    engine = TorchEngine(policy, learning_rate=1e-3, schedule=lambda _: 1.0)
    list(train_steps(engine, objective, [[experience]]))
    with torch.no_grad():
        return logprobs_and_entropy(policy, experience.batch)


def test_the_entropy_bonus_raises_the_entropy(make_policy):
    policy = make_policy()
    with torch.no_grad():
        policy.lm_head.weight.mul_(20.0)  # so that there is room above
    experience = experience_of(policy)
    mask = experience.batch.loss_mask
    with torch.no_grad():
        _, before = logprobs_and_entropy(policy, experience.batch)
    objective = policy_objective(LOSS, MEAN, temperature=1.0, entropy_coef=1.0)
    _, after = after_a_step(policy, objective, experience)
    assert float(after[mask].mean()) > float(before[mask].mean()) + 0.001


@pytest.mark.parametrize("estimator", [k2, k3])
def test_the_kl_in_the_loss_alone_brings_the_policy_nearer_to_its_reference(make_policy, estimator):
    policy, reference = make_policy(seed=0), make_policy(seed=1)
    experience = experience_of(policy, reference=reference)
    mask = experience.batch.loss_mask
    before = (experience.old_logprobs - experience.ref_logprobs)[mask].abs().mean()
    objective = policy_objective(LOSS, MEAN, temperature=1.0, kl_loss=KlLoss(estimator, 1.0))
    logprobs, _ = after_a_step(policy, objective, experience)
    after = (logprobs - experience.ref_logprobs)[mask].abs().mean()
    assert float(after) < float(before)


def test_a_token_of_weight_zero_has_no_gradient_and_still_counts(make_policy):
    policy = make_policy()
    objective = policy_objective(LOSS, MEAN, temperature=1.0)
    loss = objective(policy, experience_of(policy, advantage=1.0, weight=0.0))
    loss.total.backward()
    assert all(p.grad is None or not p.grad.any() for p in policy.parameters())
    assert loss.count == 4
