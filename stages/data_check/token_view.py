"""Examples as text with the trained tokens marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from training_core.types import Example, LabelledSolution, Pair, Prompt, UnpairedExample


def examples_in(encoded: Any) -> tuple[Example, ...]:
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
    raise TypeError(f"expected an example, found {type(encoded).__name__}")


def captions(encoded: Any) -> tuple[str, ...]:
    """Return a caption for each sequence of `examples_in`."""
    match encoded:
        case Pair():
            return ("chosen", "rejected")
        case UnpairedExample(is_desirable=wanted):
            return ("desirable" if wanted else "undesirable",)
        case LabelledSolution(labels=labels):
            shown = ", ".join("?" if label is None else f"{label:g}" for label in labels)
            return (f"steps labelled {shown}",)
        case Prompt():
            return ("prompt",)
    return ("example",)


def marked_text(tokenizer: Any, example: Example) -> list[tuple[str, bool]]:
    """Return the text of an example in pieces, each with whether it is trained.

    Special tokens are part of the text.
    """
    marked: Sequence[tuple[int, int]] = list(zip(example.input_ids, example.loss_mask, strict=True))
    return [
        (str(tokenizer.decode([token for token, _ in run])), bool(is_trained))
        for is_trained, run in ((m, list(r)) for m, r in groupby(marked, key=lambda pair: pair[1]))
    ]
