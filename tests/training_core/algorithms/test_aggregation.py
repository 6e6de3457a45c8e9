"""Aggregations on numbers worked out by hand. Shapes: B sequences, T tokens."""

import pytest
import torch

from training_core.algorithms.aggregation import AGGREGATIONS

LOSSES = torch.tensor([[1.0, 2.0, 3.0, 6.0], [5.0, 9.0, 9.0, 9.0], [4.0, 8.0, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()
"""Sums of the responses: 12, 5 and 12; lengths 4, 1 and 2."""


def mean(name, losses=LOSSES, mask=MASK, max_tokens=8):
    total, count = AGGREGATIONS[name](losses, mask, max_tokens)
    return float(total) / count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", 29 / 7),
        ("sequence_mean", (3 + 5 + 6) / 3),
        ("sequence_sum_mean", 29 / 3),
        ("constant_length", 29 / 3 / 8),
    ],
)
def test_the_mean_of_three_responses(name, expected):
    assert mean(name) == pytest.approx(expected)


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_sums_and_counts_of_micro_batches_add_up_to_those_of_the_step(name):
    pieces = [AGGREGATIONS[name](LOSSES[[i]], MASK[[i]], 8) for i in range(3)]
    total, count = sum(float(s) for s, _ in pieces), sum(c for _, c in pieces)
    assert total / count == pytest.approx(mean(name))


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_a_response_without_a_trained_token_and_a_nan_in_it_count_for_nothing(name):
    losses = torch.cat([LOSSES, torch.full((2, 4), float("nan"))])
    mask = torch.cat([MASK, torch.zeros(2, 4, dtype=torch.bool)])
    assert mean(name, losses, mask) == pytest.approx(mean(name))


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_no_gradient_reaches_what_is_not_trained(name):
    losses = LOSSES.clone().requires_grad_()
    AGGREGATIONS[name](losses, MASK, 8)[0].backward()
    assert losses.grad is not None
    assert losses.grad[~MASK].abs().sum() == 0
    assert (losses.grad[MASK] > 0).all()
