"""One row of a table, seen through the roles that its columns play."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stages.datasets.message_columns import Messages, messages_of, says
from training_core.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A row's values by role, and where it stands, for errors.

    Attributes:
        values: of each role; None where the row has none.
        where: file and row number (1-based).
        columns: role -> name of its column, where the two differ.
        filled: columns of the table that the row has a value in.
        others: JSON-like values of the columns that play no role, for kinds that keep them.
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
        """Return the first of `roles` that the row has a value for; the first one if none."""
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
        """Return the value for `role` as messages; a plain text is one message of `author`."""
        value = self.value(role)
        found = messages_of(value, author)
        if isinstance(found, str):
            raise self.error(role, found, value)
        return found

    def answered(self, role: str, author: str) -> Messages:
        """Return messages that end with a non-empty assistant message."""
        found = self.messages(role, author)
        if not says(found):
            raise self.error(role, "a non-empty assistant message at the end", found[-1])
        return found

    def text(self, role: str) -> str:
        """Return the value for `role`, a text that is not blank."""
        value = self.value(role)
        if not isinstance(value, str) or not value.strip():
            raise self.error(role, "a text that is not blank", value)
        return value

    def texts(self, role: str) -> tuple[str, ...]:
        """Return the value for `role`, a list of at least one text."""
        items = self.items(role)
        found = tuple(item for item in items if isinstance(item, str))
        if len(found) < len(items):
            wrong = next(item for item in items if not isinstance(item, str))
            raise self.error(role, "a list of texts", wrong)
        return found

    def items(self, role: str) -> Sequence[object]:
        """Return the value for `role`, a list of at least one item."""
        value = self.value(role)
        if not isinstance(value, list | tuple) or not value:
            raise self.error(role, "a list of at least one item", value)
        return value

    def scalar(self, role: str, kind: Callable[[Any], T]) -> T:
        """Return the value for `role` as a `kind`."""
        try:
            return kind(self.value(role))
        except (TypeError, ValueError) as error:
            raise self.error(role, f"a {kind.__name__}", self.value(role)) from error

    def number(self, role: str) -> float | None:
        """Return the value for `role`, or None where the row has none."""
        return self.scalar(role, float) if self.has(role) else None

    def flag(self, role: str) -> bool:
        """Return the value for `role`; True where the row has none."""
        return bool(self.value(role)) if self.has(role) else True

    def error(self, role: str, expected: str, found: object) -> DataError:
        """Build the error that names file, row, field, expectation and what was found."""
        shown = str(found)[:120]
        return DataError(
            f"{self.where}, field '{self._column(role)}': expected {expected}, found {shown!r}"
        )

    def _column(self, role: str) -> str:
        return self.columns.get(role, role)


def is_json_like(value: object) -> bool:
    """Whether JSON has a word for the value, and for everything in it."""
    if isinstance(value, list | tuple):
        return all(map(is_json_like, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json_like(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float)
