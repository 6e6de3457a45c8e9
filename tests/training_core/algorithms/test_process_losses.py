"""Process losses on numbers worked out by hand, and their laws."""

import math

import pytest
import torch

from training_core.algorithms.process_losses import (
    PROCESS_LOSSES,
    label_token_cross_entropy,
    label_token_probabilities,
    soft_label_rows,
    step_cross_entropy,
)

BOTH = pytest.mark.parametrize("name", sorted(PROCESS_LOSSES))


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def logits_of(name, log_odds):
    """Logits of a row that mean `log_odds` [N] for "right"."""
    if PROCESS_LOSSES[name].needs_scalar_head:
        return log_odds
    return torch.stack((log_odds + 0.7, torch.full_like(log_odds, 0.7)), dim=1)  # a shift is idle


def loss_of(name, log_odds, labels):
    row = PROCESS_LOSSES[name]
    return row.function(logits_of(name, log_odds), row.targets(labels))


@BOTH
def test_hard_labels_take_the_likelihood_of_the_label(name):
    # -log sigmoid(1) = 0.313262, -log(1 - sigmoid(1)) = 1.313262
    loss = loss_of(name, numbers(1.0, 1.0), numbers(1.0, 0.0))
    assert loss.tolist() == pytest.approx([0.313262, 1.313262], abs=1e-6)


@BOTH
def test_soft_labels_mix_both_likelihoods(name):
    # 0.8 * 0.313262 + 0.2 * 1.313262 = 0.513262
    assert loss_of(name, numbers(1.0), numbers(0.8)).item() == pytest.approx(0.513262, abs=1e-6)


@BOTH
def test_an_undecided_head_loses_ln_2_whatever_the_label(name):
    loss = loss_of(name, numbers(0.0, 0.0, 0.0), numbers(0.0, 0.3, 1.0))
    assert loss.tolist() == pytest.approx([math.log(2)] * 3)


@BOTH
def test_the_gradient_vanishes_where_the_head_says_the_label(name):
    labels = numbers(0.2, 0.5, 0.9)
    log_odds = labels.logit().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(name, log_odds, labels).sum(), log_odds)
    assert gradient.abs().max() < 1e-15


@BOTH
def test_losses_and_gradients_are_finite_at_logits_of_10_000(name):
    log_odds = torch.tensor([1e4, 1e4, -1e4, -1e4], requires_grad=True)
    loss = loss_of(name, log_odds, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert loss.tolist() == pytest.approx([0.0, 1e4, 1e4, 0.0], rel=1e-4)
    (gradient,) = torch.autograd.grad(loss.sum(), log_odds)
    assert gradient.tolist() == [0.0, 1.0, -1.0, 0.0]


@BOTH
def test_gradients_are_those_of_finite_differences(name):
    log_odds = numbers(-2.0, 0.5, 3.0).requires_grad_()
    labels = numbers(0.0, 0.6, 1.0)
    assert torch.autograd.gradcheck(lambda x: loss_of(name, x, labels), (log_odds,))


@BOTH
def test_the_process_reward_is_the_probability_of_right(name):
    # sigmoid(0) = 1/2, sigmoid(ln 3) = 3/4
    found = PROCESS_LOSSES[name].probabilities(logits_of(name, numbers(0.0, math.log(3))))
    assert found.tolist() == pytest.approx([0.5, 0.75])


def test_label_tokens_may_be_more_than_two():
    # softmax of ln 1, ln 2, ln 5 = 1/8, 2/8, 5/8
    logits = numbers(1.0, 2.0, 5.0).log()[None].expand(3, 3)
    loss = label_token_cross_entropy(logits, torch.tensor([0, 1, 2]))
    assert loss.exp().tolist() == pytest.approx([8.0, 4.0, 1.6])
    assert label_token_probabilities(logits).tolist() == pytest.approx([0.125] * 3)


def test_an_index_and_its_row_are_the_same_label():
    logits = numbers(0.3, -1.2, 2.0, 0.1).reshape(2, 2)
    by_index = label_token_cross_entropy(logits, torch.tensor([0, 1]))
    by_row = label_token_cross_entropy(logits, soft_label_rows(numbers(1.0, 0.0)))
    torch.testing.assert_close(by_index, by_row)


def test_a_scalar_head_is_the_difference_of_two_label_tokens():
    logits = numbers(0.3, -1.2, 2.0, 0.1).reshape(2, 2)
    labels = numbers(0.7, 0.0)
    torch.testing.assert_close(
        step_cross_entropy(logits[:, 0] - logits[:, 1], labels),
        label_token_cross_entropy(logits, soft_label_rows(labels)),
    )
