"""pass@k on counts worked out by hand, and against the mean over all choices of k responses."""

from itertools import combinations
from statistics import fmean

import pytest

from training_core.algorithms.pass_at_k import pass_at_k


@pytest.mark.parametrize(
    ("responses", "passed", "k", "expected"),
    [
        (4, 0, 1, 0.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),  # 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        (5, 2, 3, 0.9),  # 1 - C(3, 3) / C(5, 3) = 1 - 1 / 10
        (5, 3, 3, 1.0),  # two wrong ones are no choice of three
        (1, 1, 1, 1.0),
    ],
)
def test_counts_worked_out_by_hand(responses, passed, k, expected):
    assert pass_at_k(responses, passed, k=k) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("passed", range(7))
@pytest.mark.parametrize("k", range(1, 7))
def test_it_is_the_share_of_all_choices_that_have_a_right_one(passed, k):
    results = [True] * passed + [False] * (6 - passed)
    share = fmean(any(chosen) for chosen in combinations(results, k))
    assert pass_at_k(6, passed, k=k) == pytest.approx(share, abs=1e-12)


def test_many_responses_overflow_nothing():
    # with 100,000 responses of which 10 passed, C(n, k) has hundreds of digits
    assert pass_at_k(100_000, 10, k=1000) == pytest.approx(1 - 0.99**10, abs=1e-4)


def test_fewer_responses_than_k_are_an_error():
    with pytest.raises(ValueError, match="pass@4 needs at least 4 responses, found 3; sample more"):
        pass_at_k(3, 1, k=4)
