"""Confidence intervals of means over prompts, against numbers from tables."""

import pytest
from scipy.stats import binomtest

from stages.sampling.intervals import mean_interval, share_interval


def test_the_interval_of_a_mean_is_students():
    # mean 3, deviation sqrt(10 / 4), t(4) at 97.5 % = 2.7764451
    half = 2.7764451 * (10 / 4) ** 0.5 / 5**0.5
    assert mean_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3 - half, 3 + half))
    assert mean_interval([1.0]) is None


@pytest.mark.parametrize("passed", [0, 1, 4, 10])
def test_the_interval_of_a_share_is_the_exact_binomial_one(passed):
    found = share_interval([1.0] * passed + [0.0] * (10 - passed))
    exact = binomtest(passed, 10).proportion_ci(0.95, method="exact")
    assert found == pytest.approx((exact.low, exact.high))
    assert found[0] < found[1]


def test_estimates_between_0_and_1_count_as_parts_of_a_success():
    below, between, above = (share_interval([x] + [0.0] * 9) for x in (0.0, 0.5, 1.0))
    assert below[0] < between[0] < above[0]
    assert below[1] < between[1] < above[1]
    assert share_interval([0.75] * 10)[1] < share_interval([0.75] * 2)[1]
