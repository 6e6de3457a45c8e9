"""How many generated cases a property gets."""

from __future__ import annotations

import os

from hypothesis import settings

MORE = int(os.environ.get("RATCHET_CASES", "1"))
"""Factor on the number of cases of every property. Above 1 the cases are new ones in every run."""


def examples(number: int) -> settings:
    """Decorate a property with `number` cases, the same in every run."""
    return settings(max_examples=number * MORE, deadline=None, derandomize=MORE == 1)
