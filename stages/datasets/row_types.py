"""What a row holds: one frozen type for each kind of row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.datasets.message_columns import Messages


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


@dataclass(frozen=True)
class Preference:
    """A prompt with a better and a worse response; see `Demonstration` for `…_finished`.

    `margin` is the rated distance between the two, in units of a reward; 0 if it is not known.
    """

    prompt: Messages
    chosen: str
    rejected: str
    chosen_finished: bool = True
    rejected_finished: bool = True
    margin: float = 0.0


@dataclass(frozen=True)
class UnpairedResponse:
    """A prompt and one response with a label of its own."""

    prompt: Messages
    response: str
    is_desirable: bool
    is_finished: bool = True


@dataclass(frozen=True)
class Solution:
    """A prompt and a solution in steps, with one label per step.

    `labels` are in [0, 1]: 1 is right, 0 is wrong, None is not labelled. If the prompt is empty,
    the first step contains the question.
    """

    prompt: Messages
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]


@dataclass(frozen=True)
class PromptRow:
    """A prompt without a response, and the other columns of its row, e.g. the correct answer."""

    prompt: Messages
    columns: Mapping[str, Any] = field(
        default_factory=dict, repr=False
    )  # a subset may leave them out
