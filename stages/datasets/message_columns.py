"""Convert the value of a column to messages: a text, a list of messages, or a raw dialogue."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from stages.datasets.turn_forms import EXPECTED, form_of_turn, messages_in
from training_core.messages import Message, Messages
from training_core.number_text import as_text

CONVERSATIONS = ("messages", "conversations", "context_messages")
"""Roles of whole conversations: there, a list of texts is turns, and so is a list as JSON text."""

TURN = re.compile(r"\n\n(Human|Assistant):")


def messages_of(value: object, author: str, *, is_conversation: bool = False) -> Messages | str:
    """Convert `value` to messages; a text becomes one message of `author`.

    `turn_forms` has the table of the forms of a list. An answer may be a number.

    Args:
        value: of a column.
        author: who says a text that is no list.
        is_conversation: whether a list may also be texts, the first one of the user, or be written
            as JSON in a text.

    Returns:
        The messages; for an invalid value, a text that describes what was expected.
    """
    if author == "assistant":
        value = as_text(value)
    if is_conversation:
        value = _with_authors(_parsed(value))
    if isinstance(value, str):
        if not value.startswith("\n\nHuman:"):
            return ({"role": author, "content": value},)
        return raw_dialogue(value)
    if not isinstance(value, list | tuple) or not value:
        return EXPECTED
    found: list[Message] = []
    for item in value:
        messages = messages_in(item)
        if isinstance(messages, str):
            return messages
        found += messages
    return tuple(found)


def _parsed(value: object) -> object:
    """Return the list that a text holds as JSON; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if found and all(form_of_turn(turn) for turn in found) else value


def _with_authors(value: object) -> object:
    """Return texts as turns of user and assistant in alternation; any other value as it is."""
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        return value
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(value)]


def raw_dialogue(text: str) -> Messages | str:
    r"""Split the raw text of HH-RLHF, "\n\nHuman: … \n\nAssistant: …", into messages.

    Returns:
        Alternating user and assistant messages that end with a non-empty assistant message; for an
        invalid text, a text that describes what was expected.
    """
    _, *parts = TURN.split(text)
    names, contents = parts[::2], [content.strip() for content in parts[1::2]]
    alternates = all(n == ("Human", "Assistant")[i % 2] for i, n in enumerate(names))
    if not alternates or len(names) % 2 or not contents[-1]:
        return "alternating Human and Assistant turns that end with a non-empty Assistant turn"
    roles = {"Human": "user", "Assistant": "assistant"}
    return tuple(
        {"role": roles[name], "content": content}
        for name, content in zip(names, contents, strict=True)
    )


def common_beginning(chosen: str, rejected: str) -> str:
    """Return the words with which both texts begin, without the white space that follows them."""
    size = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        size += 1
    ends = [match.start() for match in re.finditer(r"\s+\S?", chosen) if match.start() < size]
    return chosen[: ends[-1]] if ends else ""


def says(messages: Sequence[Message]) -> bool:
    """Whether the last message is from the assistant and is not blank."""
    return (
        bool(messages)
        and messages[-1]["role"] == "assistant"
        and bool(messages[-1]["content"].strip())
    )
