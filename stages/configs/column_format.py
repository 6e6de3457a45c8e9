"""Formats that join columns, e.g. "{Body} {Question}": texts with names of columns in braces.

A format is never evaluated: each `{column}` is replaced by the text of that column, and nothing
else is allowed in braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
NOT_A_NAME = frozenset("!:[]")
"""Signs of Python's formats for conversions, number formats and items."""


def is_format(column: str) -> bool:
    """Whether a value of `columns` is a format; otherwise it is the name of a column."""
    return "{" in column or "}" in column


def require_plain_format(role: str, text: str) -> None:
    """Check that a format has only plain placeholders.

    Raises:
        ValueError: for a brace without its partner, an empty or doubled pair, or anything but a
            name between them.
    """
    rest = PLACEHOLDER.sub("", text)
    if "{" not in rest and "}" not in rest and not any(NOT_A_NAME & {*n} for n in names_in(text)):
        return
    raise ValueError(
        f"'{role}': expected a format with plain placeholders, e.g. '{{title}} {{body}}', found "
        f"'{text}'; write only names of columns in braces, because formats are never evaluated"
    )


def names_in(column: str) -> tuple[str, ...]:
    """Return the columns that a format names, or the one column that is no format."""
    return tuple(PLACEHOLDER.findall(column)) if is_format(column) else (column,)


def fill(text: str, texts: Mapping[str, str]) -> str:
    """Return a format with the text of each column in place of its name."""
    return PLACEHOLDER.sub(lambda match: texts[match[1]], text)
