"""Spoiled copies of a response: a reward model that prefers them rewards what nobody wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stages.admission.null_rules import response_ids
from stages.configs.admission_config import NullName
from training_core.types import Example

Ids = tuple[int, ...]


def _empty(text: Ids) -> Ids:
    del text
    return ()


def _repeated(text: Ids) -> Ids:
    return text + text


def _truncated(text: Ids) -> Ids:
    return text[: len(text) // 2]


NULL_RESPONSES: Mapping[NullName, Callable[[Ids], Ids]] = {
    "empty": _empty,
    "repeated": _repeated,
    "truncated": _truncated,
}
"""Name -> the tokens of the spoiled response, both without the end token."""


def spoiled(name: NullName, example: Example, *, end: int, max_tokens: int) -> Example:
    """Replace the response of a sequence by a spoiled copy, with an end token.

    Args:
        name: in `NULL_RESPONSES`.
        example: a prompt with a response.
        end: id of the end token.
        max_tokens: limit of the sequence; what is longer is cut before the end token.
    """
    prompt, text = example.prompt_ids, response_ids(example)
    text = text[:-1] if text[-1:] == (end,) else text
    room = max(0, max_tokens - len(prompt) - 1)
    response = (*NULL_RESPONSES[name](text)[:room], end)
    return Example(prompt + response, (0,) * len(prompt) + (1,) * len(response))
