"""Load rows of a dataset as typed objects: demonstrations, texts, preferences, ratings, solutions.

docs/data.md describes each kind of row in a file, and `shapes` has the table of columns. Values are
texts or lists of messages. Only `tables` imports the library `datasets`.
"""

from __future__ import annotations

from pathlib import Path

from stages.configs.data_config import DataConfig
from stages.datasets import kinds
from stages.datasets.lexicon import read_lexicon
from stages.datasets.reading import Reading, load, read, stream
from stages.datasets.row_types import (
    DataRow,
    Demonstration,
    Preference,
    PromptRow,
    Solution,
    UnpairedResponse,
    row_names,
)

PLACEHOLDER = "ки"
FIRST_STEP = "Step 1:"
"""Marks of Math-Shepherd: the end of each step, and the beginning of the first step."""

__all__ = [
    "FIRST_STEP",
    "PLACEHOLDER",
    "DataRow",
    "Demonstration",
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
    "row_names",
    "solutions",
    "stream",
    "texts",
    "unpaired_responses",
]


def demonstrations(data: DataConfig | Path) -> list[Demonstration]:
    """Load prompts with responses.

    Raises:
        DataError: for an invalid row, with file, row, field and what was expected; for a table
            whose columns fit no known shape, or more than one.
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
    """Load single responses with a label or score; see `demonstrations`.

    A preference gives two of them: the chosen response is desirable, the rejected one is not.

    Args:
        data: the source.
        threshold: a response is desirable if its `score` (`reward`, `rating`) is at least this
            value; None reads `label`: true, false, 1 or 0.
    """
    return load(kinds.unpaired_responses(threshold), data)


def solutions(
    data: DataConfig | Path, *, placeholder: str = PLACEHOLDER, first_step: str | None = FIRST_STEP
) -> list[Solution]:
    """Load solutions with labelled steps; see `demonstrations`.

    Args:
        data: the source.
        placeholder: mark at the end of each step, if question and steps are one text (`input`).
        first_step: beginning of the first step in such a text; what comes before is the question.
            None leaves the question in the first step, and the prompt is empty.
    """
    return load(kinds.solutions(placeholder, first_step), data)


def prompts(data: DataConfig | Path) -> list[PromptRow]:
    """Load prompts with their other columns; see `demonstrations`.

    The answer that ends a conversation is removed.
    """
    return load(kinds.PROMPTS, data)
