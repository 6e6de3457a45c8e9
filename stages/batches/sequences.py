"""The token sequences of encoded rows of any kind."""

from __future__ import annotations

from typing import assert_never

from training_core.types import Example, LabelledSolution, Pair, Prompt, UnpairedExample

Encoded = Example | Pair | UnpairedExample | LabelledSolution | Prompt
"""A tokenised row of any kind."""


def examples_in(encoded: Encoded) -> tuple[Example, ...]:
    """Return the sequences of an encoded row; no token of a prompt is trained."""
    match encoded:
        case Example():
            return (encoded,)
        case Pair(chosen=chosen, rejected=rejected):
            return (chosen, rejected)
        case UnpairedExample(example=example) | LabelledSolution(example=example):
            return (example,)
        case Prompt(input_ids=ids):
            return (Example(ids, (0,) * len(ids)),)
    assert_never(encoded)
