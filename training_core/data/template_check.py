"""Try a chat template before any row is rendered with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import PreTrainedTokenizerBase

from training_core.data.chat import render
from training_core.errors import ConfigError, DataError

MAX_LINES = 100_000
"""Executed lines of a template for a short conversation; the templates of the hub need some 100."""

COMPILED = "<template>"
"""Jinja's file name of a compiled template."""

ASKED = "\ue0a2asked\ue0a3"
"""A text that no template contains (private-use characters)."""


def require_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer's template renders a user's message, with its text.

    Raises:
        ConfigError: if it fails, loops too long, or leaves the text out.
    """
    try:
        with _limited():
            (text,) = render(tokenizer, [[{"role": "user", "content": ASKED}]], names=["(a test)"])
    except (DataError, _TooLongError) as error:
        raise ConfigError(
            "the chat template cannot render one message of a user: "
            f"{error.__cause__ or error}; mend it, or set sft.chat_template to another one"
        ) from error
    if ASKED not in text:
        raise ConfigError(
            "the chat template leaves out the text of the user's messages: one message became "
            f"{text[:80]!r}; it must write message['content'] of every message"
        )


class _TooLongError(Exception):
    """The template has executed too many lines."""


@contextmanager
def _limited() -> Iterator[None]:
    """Stop a template after `MAX_LINES` lines: nested loops could run for years.

    Jinja's sandbox limits only each `range`. Lines are counted instead of seconds, so that the
    result does not depend on the machine.
    """
    left = MAX_LINES

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != COMPILED:
            return None
        left -= event == "line"
        if left < 0:
            raise _TooLongError(f"it has not ended after {MAX_LINES:,} lines")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
