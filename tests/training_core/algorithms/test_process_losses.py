"""The process loss on numbers worked out by hand, and its laws."""

import math

import pytest
import torch

from training_core.algorithms.process_losses import step_cross_entropy


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_hard_labels_take_the_likelihood_of_the_label():
    # -log sigmoid(1) = 0.313262, -log(1 - sigmoid(1)) = 1.313262
    loss = step_cross_entropy(numbers(1.0, 1.0), numbers(1.0, 0.0))
    assert loss.tolist() == pytest.approx([0.313262, 1.313262], abs=1e-6)


def test_soft_labels_mix_both_likelihoods():
    # 0.8 * 0.313262 + 0.2 * 1.313262 = 0.513262
    loss = step_cross_entropy(numbers(1.0), numbers(0.8))
    assert loss.item() == pytest.approx(0.513262, abs=1e-6)


def test_an_undecided_head_loses_ln_2_whatever_the_label():
    loss = step_cross_entropy(numbers(0.0, 0.0, 0.0), numbers(0.0, 0.3, 1.0))
    assert loss.tolist() == pytest.approx([math.log(2)] * 3)


def test_the_gradient_vanishes_where_the_head_says_the_label():
    labels = numbers(0.2, 0.5, 0.9)
    log_odds = labels.logit().requires_grad_()
    (gradient,) = torch.autograd.grad(step_cross_entropy(log_odds, labels).sum(), log_odds)
    assert gradient.abs().max() < 1e-15


def test_losses_and_gradients_are_finite_at_logits_of_10_000():
    log_odds = torch.tensor([1e4, 1e4, -1e4, -1e4], requires_grad=True)
    loss = step_cross_entropy(log_odds, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert loss.tolist() == pytest.approx([0.0, 1e4, 1e4, 0.0], rel=1e-4)
    (gradient,) = torch.autograd.grad(loss.sum(), log_odds)
    assert gradient.tolist() == [0.0, 1.0, -1.0, 0.0]


def test_gradients_are_those_of_finite_differences():
    log_odds = numbers(-2.0, 0.5, 3.0).requires_grad_()
    labels = numbers(0.0, 0.6, 1.0)
    assert torch.autograd.gradcheck(lambda x: step_cross_entropy(x, labels), (log_odds,))
