"""Unpaired losses on numbers worked out by hand, and their laws."""

import pytest
import torch

from training_core.algorithms.unpaired_losses import UNPAIRED_LOSSES, kto, mismatched_kl

KTO = {"beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.0}


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_kto_of_two_worked_responses():
    # desirable:   1 - sigmoid(0.5 * (3 - 1)) = 1 - sigmoid(1) = 0.268941
    # undesirable: 1 - sigmoid(0.5 * (1 - 3)) = 1 - sigmoid(-1) = 0.731059
    loss = kto(numbers(3.0, 3.0), torch.tensor([True, False]), 1.0, **KTO)
    assert loss.tolist() == pytest.approx([0.268941, 0.731059], abs=1e-6)


def test_kto_weighs_both_kinds_apart():
    weights = {"desirable_weight": 1.33, "undesirable_weight": 0.7}
    loss = kto(numbers(2.0, 2.0), torch.tensor([True, False]), 2.0, beta=0.1, **weights)
    # at the baseline both are half their weight
    assert loss.tolist() == pytest.approx([0.665, 0.35], abs=1e-15)


def test_kto_raises_the_desirable_and_lowers_the_undesirable():
    logratios = numbers(1.0, 1.0).requires_grad_()
    loss = kto(logratios, torch.tensor([True, False]), 1.0, **KTO)
    # -+ beta * sigmoid(0) * sigmoid(-0) = -+ 0.5 / 4
    (gradient,) = torch.autograd.grad(loss.sum(), logratios)
    assert gradient.tolist() == pytest.approx([-0.125, 0.125])


def test_kto_saturates_at_the_weights_with_finite_gradients():
    logratios = torch.tensor([1e4, -1e4, 1e4, -1e4], requires_grad=True)
    loss = kto(logratios, torch.tensor([True, True, False, False]), 0.0, **KTO)
    assert loss.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert torch.autograd.grad(loss.sum(), logratios)[0].tolist() == [0.0] * 4


def test_kto_gradients_are_those_of_finite_differences():
    logratios = numbers(-2.0, 0.3, 1.7, 4.0).requires_grad_()
    is_desirable = torch.tensor([True, False, True, False])
    assert torch.autograd.gradcheck(lambda x: kto(x, is_desirable, 0.4, **KTO), (logratios,))


def test_the_baseline_is_the_mean_of_the_mismatched_logratios():
    assert mismatched_kl(numbers(1.0, -0.5, 2.5)).item() == pytest.approx(1.0)  # 3 / 3


def test_the_baseline_is_never_negative():
    assert mismatched_kl(numbers(-1.0, 0.5)).item() == 0.0


def test_no_gradient_flows_through_the_baseline():
    logratios = numbers(1.0, 2.0).requires_grad_()
    assert not mismatched_kl(logratios).requires_grad


def test_a_row_names_its_own_baseline():
    row = UNPAIRED_LOSSES["kto"]
    baseline = row.baseline(numbers(2.0, 4.0))
    # at the baseline, 3 nats, the loss is half the weight
    assert row.function(numbers(3.0), torch.tensor([True]), baseline, **KTO).item() == 0.5
