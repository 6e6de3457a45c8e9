"""Columns that look like a verdict on the responses of a row, and are not used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

NAMES = frozenset(
    ("label", "winner", "preferred", "preference", "score", "rating", "verdict", "vote", "better")
)
SIDES = frozenset(("a", "b", "1", "2", "first", "second", "left", "right", "model_a", "model_b"))
TIES = frozenset(("tie", "both", "neither", "both_bad"))
LOOKED_AT = 200
"""Rows whose values are looked at."""


def unused_labels(
    rows: Iterable[Mapping[str, object]], unused: Collection[str], sides: Sequence[str]
) -> Iterator[str]:
    """Yield a note for each unused column that may say which response is better.

    Args:
        rows: of a table.
        unused: its columns without a role.
        sides: columns of the responses that a verdict may name, e.g. `output_1`.
    """
    known = SIDES | {side.lower() for side in sides}
    some = list(islice(rows, LOOKED_AT)) if unused else []
    for column in unused:
        words = {word.removesuffix("s") for word in re.split(r"[^a-z]+", column.lower())}
        if words & {"chosen", "rejected"}:  # e.g. the score of the chosen response
            continue
        found = {str(row[column]).lower() for row in some if isinstance(row.get(column), str)}
        if words & NAMES:
            why = "by its name"
        elif found & known and found <= known | TIES:
            why = f"by its values {', '.join(sorted(found))}"
        else:
            continue
        yield (
            f"column '{column}' looks like a label ({why}) and is not used: if it says which "
            f"response is better, {_remedy(column, sides)}"
        )


def _remedy(column: str, sides: Sequence[str]) -> str:
    if not sides:
        return "use it (`columns`)"
    first, second = sides
    return f"use it: `columns: {{first: {first}, second: {second}, winner: {column}}}`"
