"""Rows of solutions in steps: a label for each step, or the number of the first wrong step."""

from __future__ import annotations

from collections.abc import Callable

from stages.datasets.row import Row
from stages.datasets.row_types import Solution
from stages.datasets.shapes import FIRST_ERROR_ROLES, QUESTIONS
from training_core.messages import Messages
from training_core.number_text import as_text

Labels = tuple[float | None, ...]

NO_ERROR = frozenset(("", "-1", "n/a", "na", "none", "null"))
"""What stands in place of the first wrong step, in lower case, if every step is right."""


def solution(placeholder: str, first_step: str | None) -> Callable[[Row], list[Solution]]:
    """Build the function that reads a row; see `stages.datasets.solutions`."""

    def read(row: Row) -> list[Solution]:
        if row.has("value"):
            prompt, steps = _marked_steps(row, placeholder, first_step)
        else:
            prompt = row.messages(row.first(*QUESTIONS), "user")
            steps = row.texts(row.first("steps", "completions"))
        first_error = next((role for role in FIRST_ERROR_ROLES if role in row.values), None)
        labels = (
            _labels(row, len(steps))
            if first_error is None
            else _until(row, first_error, len(steps))
        )
        return [Solution(prompt, steps, labels, where=row.where)]

    return read


def _marked_steps(
    row: Row, placeholder: str, first_step: str | None
) -> tuple[Messages, tuple[str, ...]]:
    *pieces, rest = row.text("input").split(placeholder)
    if not pieces or rest.strip():
        raise row.error("input", f"steps that each end with the mark '{placeholder}'", rest)
    if first_step is None:
        return (), tuple(piece.strip() for piece in pieces)
    question, mark, step = pieces[0].partition(first_step)
    if not mark or not question.strip():
        expected = f"a question, then a first step that begins with '{first_step}'"
        raise row.error("input", expected, pieces[0])
    steps = (mark + step, *pieces[1:])
    return ({"role": "user", "content": question.strip()},), tuple(s.strip() for s in steps)


def _labels(row: Row, size: int) -> Labels:
    """Return the label of each step."""
    role = "value" if row.has("value") else row.first("step_labels", "labels")
    labels = tuple(row.items(role))
    if len(labels) != size:
        raise row.error(role, f"{size} labels, one per step", f"{len(labels)} labels")
    found = tuple(_label(row, role, label) for label in labels)
    if all(label is None for label in found):
        raise row.error(role, "a label for at least one step", labels)
    return found


def _label(row: Row, role: str, label: object) -> float | None:
    if label is None:
        return None
    if label in ("+", "-"):
        return float(label == "+")
    if isinstance(label, bool | int | float) and 0 <= label <= 1:
        return float(label)
    raise row.error(role, "true, false, '+', '-', a number from 0 to 1, or null per step", label)


def _until(row: Row, role: str, size: int) -> Labels:
    """Return labels from the first wrong step: 1 before it, 0 for it, none after it."""
    value = row.values[role]
    text = as_text(value)
    if value is None or (isinstance(text, str) and text.strip().lower() in NO_ERROR):
        return (1.0,) * size
    start = FIRST_ERROR_ROLES.index(role)
    numbers = {str(start + place): place for place in range(size)}
    place = numbers.get(text.strip()) if isinstance(text, str) else None
    if place is None:
        other = FIRST_ERROR_ROLES[1 - start]
        expected = (
            f"the first wrong step of {size}, counted from {start} (for {1 - start}, map `{other}` "
            "instead), or null, -1 or N/A if all are right"
        )
        raise row.error(role, expected, value)
    return (*(1.0,) * place, 0.0, *(None,) * (size - place - 1))
