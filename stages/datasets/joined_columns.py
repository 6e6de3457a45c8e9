"""The value of a role: of one column, or of several columns that a format joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stages.configs.column_format import fill, is_format, names_in
from training_core.number_text import as_text


@dataclass(frozen=True)
class Unjoined:
    """A value that cannot be part of a text; reading its role is an error of the row."""

    column: str
    found: object


def value_at(values: Mapping[str, object], column: str) -> object:
    """Return the value of a column, or the text of a format; see `column_format`.

    A column in a format is a text, a number, or a list of these, which line breaks separate.
    """
    if not is_format(column):
        return values.get(column)
    texts: dict[str, str] = {}
    for name in names_in(column):
        text = _text_of(values.get(name))
        if text is None:
            return Unjoined(name, values.get(name))
        texts[name] = text
    return fill(column, texts)


def _text_of(value: object) -> str | None:
    parts = value if isinstance(value, list | tuple) else [value]
    texts = [as_text(part) for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    return "\n".join(found) if len(found) == len(texts) else None
