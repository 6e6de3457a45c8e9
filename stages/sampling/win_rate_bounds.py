"""Confidence bounds of a win rate; they hold for any number of prompts and of ties.

With the share d of the prompts that one policy won, i.e. that are not tied, and the share q of
these that ours won:

    win rate = P(win) + P(tie) / 2 = 1/2 + (q - 1/2) d

Both shares get exact bounds of Clopper & Pearson 1934, https://doi.org/10.1093/biomet/26.4.404
Given the number of ties, the number of wins is binomial with q. So 1/2 lies below the lower bound
if and only if the exact sign test (McNemar's exact test) rejects that the policies are equal.

The bootstrap is no alternative: it has no interval at all if every prompt has the same result. For
an equal policy its lower bound is above 1/2 in half of all evaluations of one prompt, and in a
quarter of those of two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

SHARE_OF_WINS = 0.9
"""Part of the level that q gets; d gets the rest. 1/2 is excluded by q alone, so q gets most."""

Bound = NDArray[np.float64]


def win_rate_bounds(
    wins: ArrayLike, losses: ArrayLike, ties: ArrayLike, *, level: ArrayLike
) -> tuple[Bound, Bound]:
    """Return the lower and the upper bound of a win rate.

    Args:
        wins: number of prompts that were won; like the others also an array, for many evaluations.
        losses: number of prompts that were lost.
        ties: number of tied prompts.
        level: chance that the lower bound is above the true win rate, at most; the same for the
            upper bound below it.
    """
    won, level = np.asarray(wins), np.asarray(level)
    decided = won + np.asarray(losses)
    ours = share_bounds(won, decided, SHARE_OF_WINS * level)
    shares = share_bounds(decided, decided + np.asarray(ties), (1 - SHARE_OF_WINS) * level / 2)
    # The share of decided prompts that is worst for the bound depends on its side of 1/2.
    low = 0.5 + (ours[0] - 0.5) * np.where(ours[0] > 0.5, *shares)  # noqa: PLR2004
    high = 0.5 + (ours[1] - 0.5) * np.where(ours[1] < 0.5, *shares)  # noqa: PLR2004
    return low, high


def share_bounds(count: ArrayLike, total: ArrayLike, level: ArrayLike) -> tuple[Bound, Bound]:
    """Return the exact bounds of a binomial probability, one-sided at `level` each.

    Args:
        count: number of successes; it need not be whole, e.g. a sum of shares.
        total: number of trials.
        level: chance that one of the bounds is on the wrong side of the probability, at most.
    """
    won, lost = np.asarray(count), np.asarray(total) - np.asarray(count)
    low = betaincinv(np.where(won == 0, 1, won), lost + 1, level)
    high = betaincinv(won + 1, np.where(lost == 0, 1, lost), 1 - np.asarray(level))
    return np.where(won == 0, 0.0, low), np.where(lost == 0, 1.0, high)
