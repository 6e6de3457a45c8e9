"""What a row holds: one frozen type for each kind of row.

`where` is the position of a row for error messages, e.g. "pairs.jsonl, row 7". Rows that differ
only in it are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training_core.messages import Messages


def _position() -> Any:
    return field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to imitate.

    Attributes:
        prompt: everything before the response; in a conversation this includes earlier answers.
        response: the last answer.
        is_finished: False if the token limit cut the response when it was sampled.
        reward: reward of the response, for conditional SFT.
    """

    prompt: Messages
    response: str
    is_finished: bool = True
    reward: float | None = None
    where: str = _position()


@dataclass(frozen=True)
class Preference:
    """A prompt with a better and a worse response; see `Demonstration` for `…_finished`.

    `margin` is the rated distance between the two, in units of a reward; 0 if it is not known.
    `subset` names a part of a benchmark, e.g. of RewardBench.
    """

    prompt: Messages
    chosen: str
    rejected: str
    chosen_finished: bool = True
    rejected_finished: bool = True
    margin: float = 0.0
    subset: str = ""
    where: str = _position()


@dataclass(frozen=True)
class UnpairedResponse:
    """A prompt and one response with a label."""

    prompt: Messages
    response: str
    is_desirable: bool
    is_finished: bool = True
    where: str = _position()


@dataclass(frozen=True)
class Solution:
    """A prompt and a solution in steps, with one label per step.

    `labels` are in [0, 1]: 1 is right, 0 is wrong, None is not labelled. If the prompt is empty,
    the first step contains the question.
    """

    prompt: Messages
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]
    where: str = _position()


@dataclass(frozen=True)
class PromptRow:
    """A prompt without a response, and the other columns of its row, e.g. the correct answer."""

    prompt: Messages
    columns: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # a subset may leave them out
    where: str = _position()


PromptedRow = Demonstration | Preference | PromptRow | Solution | UnpairedResponse
"""A row of any kind that has a prompt."""


def row_names(rows: Sequence[PromptedRow]) -> list[str]:
    """Return names of the rows' prompts for error messages: the positions, or else numbers."""
    return [f"of {row.where}" if row.where else str(i) for i, row in enumerate(rows, 1)]


DataRow = str | Demonstration | Preference | PromptRow | Solution | UnpairedResponse
"""A row of any kind; a text is a row of plain text."""
