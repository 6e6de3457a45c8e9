"""Text from outside as it may be shown and stored: no passwords, no control characters.

Imports only the standard library.
"""

from __future__ import annotations

import logging
import re
import unicodedata

_LOGIN = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s@:]+:(?!\d+(?:[/?#\s]|$))\S+)@")
"""`user:password@` of an address; the second form is a password with an unescaped slash."""

_SECRET = re.compile(
    r"(?i)([?&](?:\w*password|passwd|pwd|\w*token|\w*secret|\w*api_?key|\w*access_?key)=)[^&\s'\"]+"
)
"""A password or token among the parameters of an address."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which a terminal shows the others."""


def redacted(text: str) -> str:
    """Cut `user:password@` out of every address in a text, and hide tokens in its parameters.

    An address without its login stays usable as a link: the browser asks for the login.
    """
    return _SECRET.sub(r"\1***", _LOGIN.sub("", text))


def printable(text: str) -> str:
    r"""Spell out control characters, except line breaks and tabs, e.g. `\x1b`.

    A terminal obeys some of them: a row of a dataset could rename the window, erase lines or hide
    what is printed later.
    """
    return "".join(_spelled(character) for character in text)


def shown(text: object) -> str:
    """Return a text, or what an object says of itself, for a terminal or a log."""
    return printable(redacted(str(text)))


class SafeFormatter(logging.Formatter):
    """Formats records of a log like its base class, as text that may be shown."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return shown(super().format(record))


def _spelled(character: str) -> str:
    is_control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    return ascii(character)[1:-1] if is_control or character in _BIDI else character
