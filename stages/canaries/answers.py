"""The rows whose trained tokens are audited, each encoded as the stage encodes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, assert_never

from stages.batches.sequences import Encoded, examples_in
from stages.canaries.probe import AuditedAnswer
from stages.datasets import Demonstration, Preference, UnpairedResponse, row_names

AUDITED_ROWS = 8
READ_ROWS = 64
"""Rows among which those are found that are trained: some are too long, or held out."""

AnsweredRow = Demonstration | Preference | UnpairedResponse
R = TypeVar("R", Demonstration, Preference, UnpairedResponse)


def answers_in(
    rows: Sequence[R],
    encode: Callable[[Sequence[R]], Sequence[Encoded | None]],
    trained: Sequence[Encoded],
) -> list[AuditedAnswer]:
    """Encode the first rows again, and return those that the stage trains on.

    Args:
        rows: of the dataset.
        encode: rows -> items; None where a row is too long.
        trained: the items that the stage trains on, in the order of the rows.
    """
    some, kept = rows[:READ_ROWS], trained[:READ_ROWS]
    found: list[AuditedAnswer] = []
    for name, row, item in zip(row_names(some), some, encode(some), strict=True):
        if item is None or item not in kept:
            continue
        earlier = tuple(m["content"] for m in row.prompt if m["role"] == "assistant")
        for example, (text, is_finished) in zip(examples_in(item), _texts(row), strict=True):
            found.append(AuditedAnswer(name, example, text, earlier, is_finished))
        if len(found) >= AUDITED_ROWS:
            break
    return found


def _texts(row: AnsweredRow) -> list[tuple[str, bool]]:
    """Return the responses of a row, in the order of `examples_in`, and whether each ends."""
    match row:
        case Demonstration() | UnpairedResponse():
            return [(row.response, row.is_finished)]
        case Preference():
            return [(row.chosen, row.chosen_finished), (row.rejected, row.rejected_finished)]
    assert_never(row)
