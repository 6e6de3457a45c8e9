"""Estimators of the divergence, on one token and against an enumerated vocabulary."""

import math

import pytest
import torch

from training_core.algorithms.kl import KL_ESTIMATORS, adapted_coef, k1, k2, k3

LOGPROBS = torch.tensor([[math.log(0.5), math.log(0.25)]])
REF_LOGPROBS = torch.tensor([[math.log(0.25), math.log(0.5)]])


def test_k1_is_the_log_ratio():
    expected = torch.tensor([[math.log(2), -math.log(2)]])
    torch.testing.assert_close(k1(LOGPROBS, REF_LOGPROBS), expected)


def test_k2_is_half_the_squared_log_ratio():
    half_square = math.log(2) ** 2 / 2  # 0.2402
    torch.testing.assert_close(k2(LOGPROBS, REF_LOGPROBS), torch.full((1, 2), half_square))


def test_k3_is_never_negative_and_uses_the_reference_over_the_policy():
    # q/p = 1/2: 0.5 - 1 + ln 2 = 0.1931; q/p = 2: 2 - 1 - ln 2 = 0.3069
    expected = torch.tensor([[0.5 - 1 + math.log(2), 2 - 1 - math.log(2)]])
    torch.testing.assert_close(k3(LOGPROBS, REF_LOGPROBS), expected)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_average_to_the_exact_divergence(name):
    policy = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    reference = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum()
    estimate = (policy * KL_ESTIMATORS[name](policy.log(), reference.log())).sum()
    torch.testing.assert_close(estimate, exact, rtol=1e-12, atol=0)


def test_the_gradient_of_k2_is_the_gradient_of_the_exact_divergence():
    logits = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    logprobs = logits.log_softmax(-1)
    exact = torch.autograd.grad(
        (logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True
    )[0]
    weights = logprobs.exp().detach()  # the expectation over samples, without its own gradient
    estimate = torch.autograd.grad((weights * k2(logprobs, reference)).sum(), logits)[0]
    torch.testing.assert_close(estimate, exact, rtol=1e-12, atol=1e-14)
    assert exact.norm() > 0.1


def test_all_estimators_are_zero_where_policy_and_reference_agree():
    for estimator in KL_ESTIMATORS.values():
        assert estimator(LOGPROBS, LOGPROBS).abs().max() == 0


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        (6.6, 0.1 * (1 + 0.1 * 0.05)),  # 10 % above the target; 500 of 10000 responses
        (5.7, 0.1 * (1 - 0.05 * 0.05)),
        (60.0, 0.1 * (1 + 0.2 * 0.05)),  # the error is limited to 20 %
        (-1.0, 0.1 * (1 - 0.2 * 0.05)),
        (6.0, 0.1),
    ],
)
def test_the_adaptive_coefficient_follows_the_kl(kl, coef):
    found = adapted_coef(0.1, kl, target=6.0, horizon=10_000, responses=500)
    assert found == pytest.approx(coef)
