"""Numbers of a dataset where a text is meant, e.g. an answer that a file holds as 42."""

from __future__ import annotations

import math

EXACT = 2.0**53
"""Above it, a float may stand for another whole number than the one that was written."""


def as_text(value: object) -> object:
    """Return a number as text, and any other value as it is.

    A whole number has no decimal point: a CSV file with an empty cell turns 42 into 42.0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return str(value)
