"""Examples as text with the trained tokens marked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from stages.batches.sequences import Encoded
from training_core.types import Example, LabelledSolution, Pair, Prompt, UnpairedExample


def captions(encoded: Encoded) -> tuple[str, ...]:
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


def marked_text(tokenizer: PreTrainedTokenizerBase, example: Example) -> list[tuple[str, bool]]:
    """Return the text of an example in pieces, each with whether it is trained.

    Special tokens are part of the text.
    """
    marked: Sequence[tuple[int, int]] = list(zip(example.input_ids, example.loss_mask, strict=True))
    return [
        (str(tokenizer.decode([token for token, _ in run])), bool(is_trained))
        for is_trained, run in ((m, list(r)) for m, r in groupby(marked, key=lambda pair: pair[1]))
    ]
