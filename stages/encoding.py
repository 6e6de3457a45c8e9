"""From rows to tokenised examples."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from stages.datasets import Demonstration, Preference
from training_core.data.chat import encode_prompt, encode_response
from training_core.types import Example, Pair

log = logging.getLogger(__name__)


def encode_demonstrations(
    tokenizer: Any, rows: Sequence[Demonstration], *, max_tokens: int
) -> list[Example]:
    """Tokenise demonstrations; longer ones than `max_tokens` are dropped and counted in the log."""
    encoded = [
        encode_response(
            tokenizer,
            encode_prompt(tokenizer, str(i), row.prompt),
            row.response,
            max_tokens=max_tokens,
            is_finished=row.is_finished,
        )
        for i, row in enumerate(rows, 1)
    ]
    return _without_long_ones(encoded, max_tokens)


def encode_pairs(tokenizer: Any, rows: Sequence[Preference], *, max_tokens: int) -> list[Pair]:
    """Tokenise pairs; those with a side over `max_tokens` are dropped and counted in the log."""
    encoded: list[Pair | None] = []
    for i, row in enumerate(rows, 1):
        prompt = encode_prompt(tokenizer, str(i), row.prompt)
        chosen, rejected = (
            encode_response(tokenizer, prompt, text, max_tokens=max_tokens, is_finished=is_finished)
            for text, is_finished in (
                (row.chosen, row.chosen_finished),
                (row.rejected, row.rejected_finished),
            )
        )
        encoded.append(Pair(chosen, rejected) if chosen and rejected else None)
    return _without_long_ones(encoded, max_tokens)


def _without_long_ones(encoded: Sequence[Any], max_tokens: int) -> list[Any]:
    kept = [e for e in encoded if e is not None]
    if len(kept) < len(encoded):
        log.warning(
            "%d of %d rows are longer than max_tokens=%d and were dropped",
            len(encoded) - len(kept),
            len(encoded),
            max_tokens,
        )
    return kept
