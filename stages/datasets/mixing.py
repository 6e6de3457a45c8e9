"""The order of a mixture: how many rows of each part, and in which order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

from stages.configs.data_config import MAX_ROWS
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

    Each part gives its share of the rows, rounded so that all shares add up. The rows of a part
    come in random order, and no row repeats before all rows of its part were used.

    Args:
        sizes: number of rows of each part.
        weights: weight of each part; they need not add up to 1.
        seed: seed of all random choices.
        exhaustion: `first` ends before any part repeats; `all` ends when every row was used.
        size: number of rows of the mixture; None takes the number that `exhaustion` gives.

    Returns:
        (part, row) for each position.

    Raises:
        DataError: if `size` rows would need repeated rows although `exhaustion` is `first`; if the
            mixture would have more than `MAX_ROWS` rows, e.g. because of a tiny weight.
    """
    shares = [Fraction(w).limit_denominator(10**9) for w in weights]
    shares = [share / sum(shares) for share in shares]
    ends = [n / share for n, share in zip(sizes, shares, strict=True)]  # rows until each part ends
    natural = math.floor(min(ends)) if exhaustion == "first" else math.ceil(max(ends))
    if size is not None and exhaustion == "first" and size > natural:
        raise DataError(
            f"expected at most {natural} rows, where the first part ends, found size {size}; "
            "lower `size`, or set `exhaustion: all` to repeat the shorter parts"
        )
    if size is None and natural > MAX_ROWS:
        raise DataError(
            f"this mixture would have {natural:,} rows, the limit is {MAX_ROWS:,}: with "
            "`exhaustion: all` a part of small weight makes the others repeat; set `size`, or "
            "change the weights"
        )
    counts = quotas(shares, natural if size is None else size)
    rng = random.Random(f"mixture-{seed}")
    rows = [_passes(n, count, rng) for n, count in zip(sizes, counts, strict=True)]
    places = [part for part, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(places)
    return [(part, rows[part].pop()) for part in places]


def quotas(shares: Sequence[Fraction], size: int) -> list[int]:
    """Divide `size` rows by `shares` (which add up to 1) with the largest remainder method."""
    exact = [share * size for share in shares]
    counts = [math.floor(x) for x in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: size - sum(counts)]:
        counts[i] += 1
    return counts


def _passes(size: int, count: int, rng: random.Random) -> list[int]:
    order = rng.sample(range(size), size)
    return [order[i % size] for i in reversed(range(count))]  # the caller pops from the end
