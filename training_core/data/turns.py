"""Locate the assistant's answers in a rendered conversation.

Most templates have no generation markers. So the conversation is rendered twice: once unchanged,
and once with a mark in place of each answer. The texts before and after a mark show where the
answer starts and ends in the first rendering. A template may have rewritten an answer (e.g.
stripped white space, or removed the reasoning of earlier turns). Only text that is in the rendered
conversation is located, not the text of the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from training_core.errors import DataError
from training_core.messages import Message

Render = Callable[[Sequence[Message]], str]
"""Conversation -> rendered text, always with the same settings."""

Span = tuple[int, int]
"""Characters [start, end) of a text."""


def mark(number: int) -> str:
    """Return a text that no row contains and no template changes (private-use characters)."""
    return f"\ue0a0{number}\ue0a1"


def marked(messages: Sequence[Message], turns: Sequence[int]) -> list[dict[str, str]]:
    """Return `messages` with a mark in place of the content of each of `turns`."""
    return [{**m, "content": mark(i)} if i in turns else dict(m) for i, m in enumerate(messages)]


def assistant_turns(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the assistant's messages that are not blank."""
    return [i for i, m in enumerate(messages) if m["role"] == "assistant" and m["content"].strip()]


def end_of_turn(render: Render, end_tokens: Sequence[str]) -> str:
    """Find the end token that a template puts after an answer.

    Args:
        render: renders without the generation prompt.
        end_tokens: the tokenizer's special and added tokens, as texts.

    Returns:
        The end token with the white space before it, e.g. "<|im_end|>" or " </s>"; "" if no token
        follows.
    """
    probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark(1)}]
    _, found, closing = render(probe).rpartition(mark(1))
    rest = closing.lstrip()
    token = max((t for t in end_tokens if found and t and rest.startswith(t)), key=len, default="")
    return closing[: len(closing) - len(rest)] + token if token else ""


def spans_of(
    messages: Sequence[Message], rendered: str, skeleton: str, render: Render, closing: str
) -> list[Span]:
    """Find the assistant's answers in a rendered conversation, each with its end token.

    Args:
        messages: the conversation.
        rendered: its text.
        skeleton: the text of the same conversation with a mark in every assistant turn.
        render: the function that made `rendered`; used only if the template rewrote an answer.
        closing: from `end_of_turn`; part of a span if it follows the answer.

    Returns:
        One span per turn of `assistant_turns`; an empty span if the template removed the answer.

    Raises:
        DataError: if a turn cannot be located.
    """
    turns = assistant_turns(messages)
    said = [messages[i]["content"] for i in turns]
    spans = _as_written(rendered, skeleton, said, turns)
    if spans is None:
        spans = [_rewritten(messages, i, rendered, render) for i in turns]
    return [
        (start, end + len(closing)) if end > start and rendered.startswith(closing, end)
        else (start, end)
        for start, end in spans
    ]  # fmt: skip


def _as_written(
    rendered: str, skeleton: str, said: Sequence[str], turns: Sequence[int]
) -> list[Span] | None:
    """Put the answers between the pieces of the skeleton; None if the result is another text."""
    pieces = re.split("|".join(re.escape(mark(i)) for i in turns), skeleton)
    if len(pieces) != len(said) + 1 or not rendered.startswith(pieces[0]):
        return None
    spans: list[Span] = []
    start = len(pieces[0])
    for words, piece in zip(said, pieces[1:], strict=True):
        kept = (w for w in (words, words.strip()) if rendered.startswith(w + piece, start))
        if (word := next(kept, None)) is None:
            return None
        spans.append((start, start + len(word)))
        start += len(word) + len(piece)
    return spans if start == len(rendered) else None


def _rewritten(messages: Sequence[Message], turn: int, rendered: str, render: Render) -> Span:
    """Find one answer by the text that changes if only this answer is replaced by a mark."""
    before, found, after = render(marked(messages, [turn])).partition(mark(turn))
    said = messages[turn]["content"]
    start = _common_length(before, rendered)
    end = len(rendered) - _common_length(after[::-1], rendered[::-1])
    if start != len(before):  # the template also changed the text before the answer
        start = _begin_of(said, rendered, start, end)
    words = _dense(rendered[start:end])
    if not found or start > end or words not in _dense(said):
        raise DataError(
            f"message {turn + 1}, by the assistant: the chat template rewrote {said[:60]!r} so "
            f"that it cannot be located (nearest: {rendered[max(start, 0) : end][:60]!r}); "
            "train only the last turn (`train_on: last_turn`), or use another template"
        )
    while start < end and rendered[start].isspace():
        start += 1
    return start, end


def _common_length(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _begin_of(said: str, rendered: str, start: int, end: int) -> int:
    """Move `start` back while the text from `start` to `end` is still part of the answer."""
    dense = _dense(said)
    while start > 0 and _dense(rendered[start - 1 : end]) in dense:
        start -= 1
    return start


def _dense(text: str) -> str:
    return "".join(text.split())
