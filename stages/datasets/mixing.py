"""The order of a mixture: how many rows of each part, and which one comes when."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

from training_core.errors import DataError


def mixture_order(
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    seed: int,
    exhaustion: str,
    size: int | None = None,
) -> list[tuple[int, int]]:
    """Choose the rows of a mixture and their order.

    Part i gives its share of the rows, rounded up or down, so that the shares add up. It gives them
    in a random order of its own, and all of them once before any of them again.

    Args:
        sizes: rows of each part.
        weights: of the parts, not necessarily adding up to 1.
        seed: of every random choice.
        exhaustion: `first` ends where a part would have to repeat, `all` where each was used whole.
        size: rows of the mixture; None gives as many as `exhaustion` says.

    Returns:
        (part, row) of each place.

    Raises:
        DataError: if `size` rows need repeating although `exhaustion` is `first`.
    """
    shares = [Fraction(w).limit_denominator(10**9) for w in weights]
    shares = [share / sum(shares) for share in shares]
    ends = [n / share for n, share in zip(sizes, shares, strict=True)]  # rows until each part ends
    natural = math.floor(min(ends)) if exhaustion == "first" else math.ceil(max(ends))
    if size is not None and exhaustion == "first" and size > natural:
        raise DataError(
            f"a mixture of {size} rows was asked for, but its first part ends after {natural}; "
            "lower `size`, or set `exhaustion: all` to repeat the shorter parts"
        )
    counts = quotas(shares, natural if size is None else size)
    rng = random.Random(f"mixture-{seed}")
    rows = [_passes(n, count, rng) for n, count in zip(sizes, counts, strict=True)]
    places = [part for part, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(places)
    return [(part, rows[part].pop()) for part in places]


def quotas(shares: Sequence[Fraction], size: int) -> list[int]:
    """Divide `size` rows by `shares` (adding up to 1), by the method of largest remainders."""
    exact = [share * size for share in shares]
    counts = [math.floor(x) for x in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: size - sum(counts)]:
        counts[i] += 1
    return counts


def _passes(size: int, count: int, rng: random.Random) -> list[int]:
    order = rng.sample(range(size), size)
    return [order[i % size] for i in reversed(range(count))]  # taken from the end
