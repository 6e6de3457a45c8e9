"""One row of a table, accessed by the roles of its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stages.datasets.message_columns import Messages, messages_of, says
from training_core.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """The values of a row by role, and its position for error messages.

    Attributes:
        values: value of each role; None if the row has none.
        where: file and row number (1-based).
        columns: role -> name of its column, if the two differ.
        filled: columns of the table for which the row has a value.
        others: JSON-like values of the columns without a role, for kinds that keep them.
    """

    values: Mapping[str, object]
    where: str
    columns: Mapping[str, str]
    filled: Sequence[str] = ()
    others: Mapping[str, object] = field(default_factory=dict)

    def has(self, role: str) -> bool:
        """Whether the row has a value for `role`."""
        return self.values.get(role) is not None

    def first(self, *roles: str) -> str:
        """Return the first of `roles` with a value; if none has a value, the first role."""
        return next((role for role in roles if self.has(role)), roles[0])

    def value(self, role: str) -> object:
        """Return the value for `role`.

        Raises:
            DataError: if there is none.
        """
        if not self.has(role):
            raise DataError(
                f"{self.where}: there is no field '{self._column(role)}' "
                f"(found: {', '.join(self.filled)}); map it with `columns: {{{role}: <column>}}`"
            )
        return self.values[role]

    def messages(self, role: str, author: str) -> Messages:
        """Return the value for `role` as messages; a plain text becomes one message of `author`."""
        value = self.value(role)
        found = messages_of(value, author)
        if isinstance(found, str):
            raise self.error(role, found, value)
        return found

    def answered(self, role: str, author: str) -> Messages:
        """Return the value for `role` as messages that end with a non-empty assistant message."""
        found = self.messages(role, author)
        if not says(found):
            raise self.error(role, "a non-empty assistant message at the end", found[-1])
        return found

    def text(self, role: str) -> str:
        """Return the value for `role`, which must be a text that is not blank."""
        value = self.value(role)
        if not isinstance(value, str) or not value.strip():
            raise self.error(role, "a text that is not blank", value)
        return value

    def texts(self, role: str) -> tuple[str, ...]:
        """Return the value for `role`, which must be a list of at least one text."""
        items = self.items(role)
        found = tuple(item for item in items if isinstance(item, str))
        if len(found) < len(items):
            wrong = next(item for item in items if not isinstance(item, str))
            raise self.error(role, "a list of texts", wrong)
        return found

    def items(self, role: str) -> Sequence[object]:
        """Return the value for `role`, which must be a list of at least one item."""
        value = self.value(role)
        if not isinstance(value, list | tuple) or not value:
            raise self.error(role, "a list of at least one item", value)
        return value

    def scalar(self, role: str, kind: Callable[[Any], T]) -> T:
        """Return the value for `role`, converted to `kind`."""
        try:
            return kind(self.value(role))
        except (TypeError, ValueError) as error:
            raise self.error(role, f"a {kind.__name__}", self.value(role)) from error

    def number(self, role: str) -> float | None:
        """Return the value for `role` as a float, or None if the row has none."""
        return self.scalar(role, float) if self.has(role) else None

    def flag(self, role: str) -> bool:
        """Return the value for `role` as a bool; True if the row has none."""
        return bool(self.value(role)) if self.has(role) else True

    def error(self, role: str, expected: str, found: object) -> DataError:
        """Build an error with file, row, field, what was expected and what was found."""
        shown = str(found)[:120]
        return DataError(
            f"{self.where}, field '{self._column(role)}': expected {expected}, found {shown!r}"
        )

    def _column(self, role: str) -> str:
        return self.columns.get(role, role)


def is_json_like(value: object) -> bool:
    """Whether JSON can represent the value and everything in it."""
    if isinstance(value, list | tuple):
        return all(map(is_json_like, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json_like(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float)
