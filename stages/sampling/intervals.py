"""Confidence intervals of means over prompts.

Responses to one prompt resemble each other, so a prompt counts once, with its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.special import stdtrit

from stages.sampling.win_rate_bounds import share_bounds

LEVEL = 0.025
"""Level of each end, i.e. both ends hold with 95 %."""


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Return the t interval of a mean: mean ± t(n - 1) * s / sqrt(n); None for a single value.

    Args:
        values: one per prompt, of any size.
        level: of each end.
    """
    if len(values) == 1:
        return None
    half = float(stdtrit(len(values) - 1, 1 - level)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def share_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the exact interval of a binomial share (Clopper & Pearson 1934), in [0, 1].

    It has a width if all values are 0 or all are 1, unlike a t interval. Values between 0 and 1
    vary less than results of 0 and 1 with the same mean, so for them it is wider than needed.

    Args:
        values: one per prompt, in [0, 1], e.g. estimates of pass@k.
    """
    low, high = share_bounds(sum(values), len(values), LEVEL)
    return float(low), float(high)
