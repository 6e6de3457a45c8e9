"""Where the assistant's words stand in a rendered conversation.

Templates are programs, and many say nothing about what the assistant wrote (they have no generation
markers). So the places are found by experiment: the conversation is rendered once as it is and once
with marks in place of the assistant's words; what lies between the same surroundings are the words.
A template may have rewritten them (stripped white space, cut the reasoning of earlier turns); only
what is really in the rendered text is found, never what the row said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from training_core.errors import DataError

Render = Callable[[Sequence[Any]], str]
"""Conversation -> text, always with the same settings."""

Span = tuple[int, int]
"""Characters [start, end) of a text."""


def mark(number: int) -> str:
    """Return a text that no row contains and no template touches (private-use characters)."""
    return f"\ue0a0{number}\ue0a1"


def marked(messages: Sequence[Any], turns: Sequence[int]) -> list[dict[str, str]]:
    """Return `messages` with a mark in place of what is said in `turns`."""
    return [{**m, "content": mark(i)} if i in turns else dict(m) for i, m in enumerate(messages)]


def assistant_turns(messages: Sequence[Any]) -> list[int]:
    """Return the positions of the assistant's messages that say something."""
    return [i for i, m in enumerate(messages) if m["role"] == "assistant" and m["content"].strip()]


def end_of_turn(render: Render, end_tokens: Sequence[str]) -> str:
    """Find what a template puts after an assistant's words to end them.

    Args:
        render: with the generation prompt off.
        end_tokens: the tokenizer's special and added tokens, as texts.

    Returns:
        The end token with the white space before it, as "<|im_end|>" or " </s>"; "" if no token
        follows.
    """
    probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark(1)}]
    _, found, closing = render(probe).rpartition(mark(1))
    rest = closing.lstrip()
    token = max((t for t in end_tokens if found and t and rest.startswith(t)), key=len, default="")
    return closing[: len(closing) - len(rest)] + token if token else ""


def spans_of(
    messages: Sequence[Any], rendered: str, skeleton: str, render: Render, closing: str
) -> list[Span]:
    """Find the assistant's words in a rendered conversation, each with the token that ends them.

    Args:
        messages: the conversation.
        rendered: its text.
        skeleton: the text of the same conversation with a mark in every assistant turn.
        render: conversation -> text, as `rendered` was made; used only where the template rewrote.
        closing: from `end_of_turn`; belongs to a span where it follows the words.

    Returns:
        One span per turn of `assistant_turns`; an empty one if the template left nothing of it.

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
    """Lay the words between the pieces of the skeleton; None if that does not give the text."""
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


def _rewritten(messages: Sequence[Any], turn: int, rendered: str, render: Render) -> Span:
    """Find one turn by what changes when only its words are replaced."""
    before, found, after = render(marked(messages, [turn])).partition(mark(turn))
    said = messages[turn]["content"]
    start = _common_length(before, rendered)
    end = len(rendered) - _common_length(after[::-1], rendered[::-1])
    if start != len(before):  # the template answered to the words; take back what is theirs
        start = _begin_of(said, rendered, start, end)
    words = _dense(rendered[start:end])
    if not found or start > end or words not in _dense(said):
        raise DataError(
            f"message {turn + 1}, by the assistant: the chat template rewrote {said[:60]!r} so "
            f"that it cannot be found again (nearest: {rendered[max(start, 0) : end][:60]!r}); "
            "train the last turn only (`train_on: last_turn`), or use another template"
        )
    while start < end and rendered[start].isspace():
        start += 1
    return start, end


def _common_length(one: str, other: str) -> int:
    """Length of the beginning that two texts have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _begin_of(said: str, rendered: str, start: int, end: int) -> int:
    """Move `start` back while the text from there on is still something that was said."""
    dense = _dense(said)
    while start > 0 and _dense(rendered[start - 1 : end]) in dense:
        start -= 1
    return start


def _dense(text: str) -> str:
    return "".join(text.split())
