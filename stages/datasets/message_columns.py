"""Convert the value of a column to messages: a text, a list of messages, or a raw dialogue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Message = Mapping[str, str]
Messages = tuple[Message, ...]

ROLES = ("system", "user", "assistant", "tool")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "function": "tool", "observation": "tool"}
UNSEEN_KEYS = ("tool_calls", "reasoning_content", "thinking")
"""Keys of a message that a template may render but that are not kept here; they must be empty."""

EXPECTED = f"a text or a list of {{role, content}} messages with roles of {', '.join(ROLES)}"
TURN = re.compile(r"\n\n(Human|Assistant):")


def messages_of(value: object, author: str) -> Messages | str:
    """Convert `value` to messages; a text becomes one message of `author`.

    `{from, value}` messages of ShareGPT are supported, too.

    Returns:
        The messages; for an invalid value, a text that describes what was expected.
    """
    if isinstance(value, str):
        if not value.startswith("\n\nHuman:"):
            return ({"role": author, "content": value},)
        return raw_dialogue(value)
    if not isinstance(value, list | tuple) or not value:
        return EXPECTED
    found: list[Message] = []
    for item in value:
        message = _message(item)
        if isinstance(message, str):
            return message
        found.append(message)
    return tuple(found)


def _message(item: object) -> Message | str:
    if not isinstance(item, Mapping):
        return EXPECTED
    role = item.get("role", item.get("from"))
    content = item.get("content", item.get("value"))
    role = SHAREGPT_ROLES.get(str(role), role)
    if role not in ROLES or not isinstance(content, str):
        return EXPECTED
    for key in UNSEEN_KEYS:
        if item.get(key):
            return f"messages without '{key}', which would be lost; write it into `content`"
    return {"role": role, "content": content}


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
        return "Human and Assistant in turn, and a non-empty Assistant at the end"
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
