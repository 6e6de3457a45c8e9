"""pass@k: the chance that at least one of k responses to a prompt is right."""

from __future__ import annotations

import math


def pass_at_k(responses: int, passed: int, *, k: int) -> float:
    """Estimate the chance that one of `k` responses passes, from `responses` >= k of them.

        pass@k = 1 - C(n - c, k) / C(n, k),    n responses, of which c passed

    It is the share of all choices of k responses that have one that passed, so it is unbiased.
    1 - (1 - c / n)^k would be too low. Both binomial coefficients are exact integers.

    Args:
        responses: n, at least k.
        passed: c, from 0 to n.
        k: at least 1.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: if there are fewer than k responses.

    Source:
        Chen et al. 2021 (Codex), eq. 1, https://arxiv.org/abs/2107.03374
    """
    if responses < k:
        raise ValueError(f"pass@{k} needs at least {k} responses, found {responses}; sample more")
    return 1.0 - math.comb(responses - passed, k) / math.comb(responses, k)
