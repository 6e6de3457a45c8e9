"""One row of a table, accessed by the roles of its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stages.datasets.joined_columns import Unjoined
from stages.datasets.message_columns import CONVERSATIONS, messages_of, says
from training_core.errors import DataError
from training_core.messages import Messages
from training_core.number_text import as_text

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """The values of a row by role, and its position for error messages.

    Attributes:
        values: value of each role; None if the row has none.
        where: file and row number (1-based).
        columns: role -> name of its column, or the format that joins columns, if they differ.
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
        """Return the first of `roles` with a value, or else the first one that the table has."""
        known = next((role for role in roles if role in self.values), roles[0])
        return next((role for role in roles if self.has(role)), known)

    def value(self, role: str) -> object:
        """Return the value for `role`.

        Raises:
            DataError: if there is none, or a format lacks one of its columns.
        """
        if isinstance(unjoined := self.values.get(role), Unjoined):
            raise DataError(
                f"{self.where}, field '{unjoined.column}': expected a text, a number or a list of "
                f"these for the format of '{role}', found {str(unjoined.found)[:120]!r}"
            )
        if not self.has(role):
            raise DataError(
                f"{self.where}: there is no field '{self.column(role)}' "
                f"(found: {', '.join(self.filled)}); map it with `columns: {{{role}: <column>}}`"
            )
        return self.values[role]

    def messages(self, role: str, author: str) -> Messages:
        """Return the value for `role` as messages; a plain text becomes one message of `author`."""
        value = self.value(role)
        found = messages_of(value, author, is_conversation=role in CONVERSATIONS)
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
        """Return the value for `role`, which must be a number or a text that is not blank."""
        value = as_text(self.value(role))
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
        """Return the value for `role`, converted to `kind`; a number must be finite."""
        try:
            found = kind(self.value(role))
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(role, f"a {kind.__name__}", self.value(role)) from error
        if isinstance(found, float) and not math.isfinite(found):  # no comparison finds a NaN
            raise self.error(role, "a finite number", self.value(role))
        return found

    def number(self, role: str) -> float | None:
        """Return the value for `role` as a float, or None if the row has none."""
        return self.scalar(role, float) if self.has(role) else None

    def flag(self, role: str) -> bool:
        """Return the value for `role`: true, false, 1 or 0; True if the row has none."""
        value = self.value(role) if self.has(role) else True
        if value not in (0, 1):  # True == 1 and False == 0; a text would always be true
            raise self.error(role, "true, false, 1 or 0", value)
        return bool(value)

    def error(self, role: str, expected: str, found: object) -> DataError:
        """Build an error with file, row, field, what was expected and what was found."""
        shown = str(found)[:120]
        return DataError(
            f"{self.where}, field '{self.column(role)}': expected {expected}, found {shown!r}"
        )

    def column(self, role: str) -> str:
        """Return the name of the column of `role`, as the file knows it."""
        return self.columns.get(role, role)


def is_json_like(value: object) -> bool:
    """Whether JSON can represent the value and everything in it."""
    if isinstance(value, list | tuple):
        return all(map(is_json_like, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json_like(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float)
