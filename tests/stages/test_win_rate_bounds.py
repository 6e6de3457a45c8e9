"""The bounds of a win rate, and what follows for promotions: exact binomials, and simulations."""

import numpy as np
import pytest
from scipy.stats import binomtest

from stages.sampling.win_rate_bounds import win_rate_bounds
from tasks.gate import GateConfig

GATE = GateConfig()
RUNS = 20_000
SIZES = [1, 2, 8, 64, 256]


def counts(ours, theirs):
    """Wins, losses and ties of many evaluations, [runs, prompts] rewards each."""
    wins, losses = (ours > theirs).sum(1), (ours < theirs).sum(1)
    return wins, losses, ours.shape[1] - wins - losses


def is_promoted(wins, losses, ties, attempt=1):
    low, _ = win_rate_bounds(wins, losses, ties, level=GATE.level_of(attempt))
    return low > GATE.min_win_rate_low


def rewards(rng, kind, shape):
    """Rewards of one policy: a continuous scale, a verifier that mostly says 1, or 0, 1 and 2."""
    if kind == "continuous":
        return rng.standard_normal(shape, dtype=np.float32)
    if kind == "verifier":
        return rng.random(shape, dtype=np.float32) < 0.95
    return rng.integers(0, 3, shape, dtype=np.int8)


@pytest.mark.parametrize("kind", ["continuous", "verifier", "three values"])
@pytest.mark.parametrize("prompts", SIZES)
def test_an_equal_policy_is_rarely_promoted_at_its_first_attempt(kind, prompts):
    rng = np.random.default_rng(prompts)
    ours, theirs = (rewards(rng, kind, (RUNS, prompts)) for _ in range(2))
    rate = is_promoted(*counts(ours, theirs)).mean()
    # The level of the first attempt is 1.25 %; three standard errors of 20,000 runs are 0.25 %.
    assert rate <= 0.0125 + 0.0025


@pytest.mark.parametrize("kind", ["continuous", "three values"])
@pytest.mark.parametrize("prompts", SIZES)
def test_one_of_twenty_equal_policies_is_rarely_promoted(kind, prompts):
    """All of them meet the same responses of the champion, as in the flow."""
    runs, rng = 4_000, np.random.default_rng(prompts)
    champion = rewards(rng, kind, (runs, prompts))
    is_any = np.zeros(runs, dtype=bool)
    for attempt in range(1, 21):
        is_any |= is_promoted(*counts(rewards(rng, kind, (runs, prompts)), champion), attempt)
    assert is_any.mean() <= 0.025


def test_without_a_price_for_attempts_twenty_equal_policies_would_often_be_promoted():
    """What the test above would find if the level did not fall."""
    runs, prompts, rng = 2_000, 256, np.random.default_rng(0)
    champion = rewards(rng, "continuous", (runs, prompts))
    is_any = np.zeros(runs, dtype=bool)
    for _ in range(20):
        is_any |= is_promoted(*counts(rewards(rng, "continuous", (runs, prompts)), champion))
    assert is_any.mean() > 0.08


def test_a_policy_that_wins_six_of_ten_prompts_is_found_with_256_prompts():
    wins = np.random.default_rng(1).binomial(256, 0.6, RUNS)
    # At least 147 wins are needed: P(wins >= 147) = 0.82; a bound at 2.5 % would find 0.90.
    assert is_promoted(wins, 256 - wins, 0).mean() == pytest.approx(0.82, abs=0.02)
    # A third of the prompts is tied, and it wins six of ten others: 101 of 171 are needed.
    decided = np.random.default_rng(2).binomial(171, 0.6, RUNS)
    assert is_promoted(decided, 171 - decided, 85).mean() > 0.6


def test_the_smallest_number_of_prompts_finds_a_clear_winner():
    wins = np.random.default_rng(1).binomial(GATE.min_judged_prompts, 0.75, RUNS)
    assert is_promoted(wins, GATE.min_judged_prompts - wins, 0).mean() > 0.88


@pytest.mark.parametrize("chances", [(0.5, 0.5), (0.1, 0.05), (0.3, 0.6), (0.02, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("prompts", [1, 4, 30, 256])
def test_both_bounds_hold_whatever_the_win_rate_and_the_ties_are(prompts, chances):
    win, loss = chances
    sampled = np.random.default_rng(3).multinomial(prompts, (win, loss, 1 - win - loss), RUNS).T
    low, high = win_rate_bounds(*sampled, level=0.025)
    rate = win + (1 - win - loss) / 2
    assert (low > rate).mean() <= 0.025 + 0.003
    assert (high < rate).mean() <= 0.025 + 0.003


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (7, 0), (8, 1), (60, 40), (61, 39)])
def test_half_is_excluded_exactly_when_the_sign_test_says_so(wins, losses):
    for ties in (0, 3, 1000):
        low, high = win_rate_bounds(wins, losses, ties, level=0.025)
        mirrored, _ = win_rate_bounds(losses, wins, ties, level=0.025)
        is_proven = wins > 0 and binomtest(wins, wins + losses, alternative="greater").pvalue <= (
            0.9 * 0.025
        )
        assert (low > 0.5) == is_proven
        assert high == pytest.approx(1 - mirrored)


def test_the_bounds_are_those_of_clopper_and_pearson_in_scipy():
    exact = binomtest(60, 100).proportion_ci(1 - 2 * 0.9 * 0.025, "exact")
    assert win_rate_bounds(60, 40, 0, level=0.025) == pytest.approx((exact.low, exact.high))
    # Far above 1/2 the share of decided prompts counts, too: 0.00125^(1/100) = 0.9354 of them.
    exact = binomtest(80, 100).proportion_ci(1 - 2 * 0.9 * 0.025, "exact")
    low, _ = win_rate_bounds(80, 20, 0, level=0.025)
    assert low == pytest.approx(0.5 + (exact.low - 0.5) * 0.00125**0.01)
