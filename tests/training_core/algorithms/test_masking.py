"""Sums, means and whitening over a mask; what stands outside it never counts."""

import math

import torch

from training_core.algorithms.masking import masked_mean, masked_sum, whiten

NAN = float("nan")


def test_masked_sum_and_mean_ignore_nan_and_infinity_outside_the_mask():
    values = torch.tensor([[1.0, NAN], [float("inf"), 4.0]])
    mask = torch.tensor([[True, False], [False, True]])
    assert masked_sum(values, mask).item() == 5.0
    assert masked_mean(values, mask).item() == 2.5


def test_no_nan_leaks_into_the_gradient():
    values = torch.tensor([2.0, NAN], requires_grad=True)
    masked_mean(values, torch.tensor([True, False])).backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 0.0]


def test_the_mean_of_nothing_is_zero():
    assert masked_mean(torch.tensor([3.0]), torch.tensor([False])).item() == 0.0


def test_whitening_gives_mean_zero_and_biased_variance_one():
    values = torch.tensor([[1.0, 3.0, 100.0], [5.0, NAN, NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found = whiten(values, mask)
    # mean of 1, 3, 5 is 3; biased variance (4 + 0 + 4) / 3, deviation 1.63299
    deviation = math.sqrt(8 / 3)
    expected = torch.tensor([[-2 / deviation, 0.0, 0.0], [2 / deviation, 0.0, 0.0]])
    torch.testing.assert_close(found, expected)


def test_whitening_equal_values_gives_zeros():
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert whiten(torch.full((1, 3), 7.0), mask).tolist() == [[0.0, 0.0, 0.0]]
