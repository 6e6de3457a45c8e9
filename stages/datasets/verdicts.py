"""Two answers and a column that says which one won, e.g. `response_a`, `response_b`, `winner`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile

from stages.datasets.row import Row
from training_core.number_text import as_text

SIDES = (
    ("response_a", "response_b"),
    ("response_0", "response_1"),
    ("response_1", "response_2"),
    ("response1", "response2"),
    ("answer_a", "answer_b"),
    ("answer_0", "answer_1"),
    ("output_a", "output_b"),
    ("output_1", "output_2"),
    ("completion_a", "completion_b"),
    ("conversation_a", "conversation_b"),
)
"""Columns that are read as the roles `first` and `second`, if no others fit."""

VERDICTS = ("winner", "winner_index", "winner_number", "first_wins")
"""Roles that say which answer won: its name; counted from 0; counted from 1; whether the first."""

FIRST = frozenset(("a", "first", "left"))
SECOND = frozenset(("b", "second", "right"))
TIES = frozenset(
    (
        *("tie", "ties", "draw", "equal", "same", "both", "neither"),
        *("bothbad", "both bad", "both_bad", "tie (bothbad)", "tie (both bad)"),
    )
)
NAMED = "the name of one of the two columns, its end, a, b, first, second, left, right or tie"
NUMBERED = (
    "a name, because a number has several meanings: map `winner_index` (0 or 1), `winner_number` "
    "(1 or 2) or `first_wins` (1: the first answer won, 0: the second one) to this column"
)


def with_sides(columns: Mapping[str, str]) -> dict[str, str]:
    """Return role -> column with a known pair of columns as `first` and `second`.

    Only if there is a verdict, and only one pair of `SIDES`.
    """
    pairs = [pair for pair in SIDES if set(pair) <= set(columns)]
    is_named = "first" in columns or "second" in columns
    if is_named or len(pairs) != 1 or not set(VERDICTS) & set(columns):
        return dict(columns)
    first, second = pairs[0]
    others = {role: column for role, column in columns.items() if role not in pairs[0]}
    return {**others, "first": columns[first], "second": columns[second]}


def winner_of(row: Row) -> str | None:
    """Return the role of the answer that won, `first` or `second`; None for a tie.

    Raises:
        DataError: if the verdict is none.
    """
    verdict = next((role for role in VERDICTS if role in row.values), VERDICTS[0])
    value = row.value(verdict)
    if verdict == "winner":
        return _by_name(row, value)
    if verdict == "first_wins":
        return _by_flags(row)
    start = 0 if verdict == "winner_index" else 1
    if isinstance(value, bool) or value not in (start, start + 1):
        expected = (
            f"{start} or {start + 1}, the number of the answer that won, counted from {start}"
        )
        raise row.error(verdict, expected, value)
    return "first" if value == start else "second"


def _by_flags(row: Row) -> str | None:
    """Read `first_wins`; `second_wins` beside it makes ties possible."""
    is_first = row.flag("first_wins")
    if "second_wins" not in row.values:
        return "first" if is_first else "second"
    row.value("second_wins")  # refuses a row without it
    if is_first == row.flag("second_wins"):
        return None
    return "first" if is_first else "second"


def _by_name(row: Row, value: object) -> str | None:
    winner = str(as_text(value)).strip().lower()
    if winner in TIES:
        return None
    last = re.split(r"[\s_-]", winner)[-1]  # of e.g. model_a
    first, second = (row.column(role).lower() for role in ("first", "second"))
    begin = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
    for name in filter(None, (winner, last)):
        for role, column in (("first", first), ("second", second)):
            if name in (column, column[begin:].strip("_- ")):
                return role
    if last in FIRST | SECOND:
        return "first" if last in FIRST else "second"
    is_number = isinstance(value, int | float) or winner.isdigit()
    raise row.error("winner", NUMBERED if is_number else NAMED, value)


def require_clear_numbers(rows: Iterable[Row]) -> None:
    """Check that every number in the column `winner` names an answer.

    If e.g. 0 names none, then 1 does not mean the answer that it names: no row can be trusted,
    and dropping bad rows would hide that.

    Raises:
        DataError: for the first number that names none.
    """
    for row in rows:
        value = row.values.get("winner")
        if isinstance(value, int | float) or (isinstance(value, str) and value.strip().isdigit()):
            _by_name(row, value)
