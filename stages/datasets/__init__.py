"""Rows of a dataset, in one shape each: demonstrations, texts, preferences, ratings, solutions.

What each kind looks like in a file is in docs/data.md; `shapes` has the table. Values are texts or
lists of messages. Only `tables` imports the library `datasets`.
"""

from __future__ import annotations

from pathlib import Path

from stages.configs.data_config import DataConfig
from stages.datasets import kinds
from stages.datasets.kinds import Demonstration, Preference, PromptRow, Solution, UnpairedResponse
from stages.datasets.lexicon import read_lexicon
from stages.datasets.message_columns import Messages
from stages.datasets.reading import Reading, load, read

PLACEHOLDER = "ки"
FIRST_STEP = "Step 1:"
"""How Math-Shepherd marks the end of each step, and the beginning of the first one."""

__all__ = [
    "FIRST_STEP",
    "PLACEHOLDER",
    "Demonstration",
    "Messages",
    "Preference",
    "PromptRow",
    "Reading",
    "Solution",
    "UnpairedResponse",
    "demonstrations",
    "preferences",
    "prompts",
    "read",
    "read_lexicon",
    "solutions",
    "texts",
    "unpaired_responses",
]


def demonstrations(data: DataConfig | Path) -> list[Demonstration]:
    """Load prompts with responses.

    Raises:
        DataError: for a row that is not one, naming file, row, field, and what was expected; for a
            table whose columns fit no known shape, or more than one.
    """
    return load(kinds.DEMONSTRATIONS, data)


def texts(data: DataConfig | Path) -> list[str]:
    """Load plain texts for continued pre-training; see `demonstrations`."""
    return load(kinds.TEXTS, data)


def preferences(data: DataConfig | Path) -> list[Preference]:
    """Load prompts with a chosen and a rejected response; see `demonstrations`."""
    return load(kinds.PREFERENCES, data)


def unpaired_responses(
    data: DataConfig | Path, *, threshold: float | None = None
) -> list[UnpairedResponse]:
    """Load responses that were judged by themselves; see `demonstrations`.

    Preferences are read as two of them: the chosen one desirable, the rejected one not.

    Args:
        data: where they come from.
        threshold: a response is desirable where its `score` (`reward`, `rating`) is at least this;
            None reads `label`: true, false, 1 or 0.
    """
    return load(kinds.unpaired_responses(threshold), data)


def solutions(
    data: DataConfig | Path, *, placeholder: str = PLACEHOLDER, first_step: str | None = FIRST_STEP
) -> list[Solution]:
    """Load solutions whose steps are labelled; see `demonstrations`.

    Args:
        data: where they come from.
        placeholder: what ends each step where question and steps are one text (`input`).
        first_step: what the first step begins with there, so that the question is known; None
            leaves the question in the first step and the prompt empty.
    """
    return load(kinds.solutions(placeholder, first_step), data)


def prompts(data: DataConfig | Path) -> list[PromptRow]:
    """Load prompts with the columns beside them; see `demonstrations`.

    An answer that ends a conversation is left out.
    """
    return load(kinds.PROMPTS, data)
