"""Tokens that a tokenizer does not know: the text that they stand for is lost.

Tokenizers of bytes know every text. Tokenizers of words do not, and some tokenizers of pieces lack
e.g. the signs of mathematics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from stages.datasets import DataRow, Preference, Solution
from stages.datasets.row_types import Demonstration, UnpairedResponse
from training_core.data.chat import tokenise
from training_core.errors import DataError

SHOWN_WORDS = 5
SEARCHED_ROWS = 1000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unknown:
    """How many of the tokens of a dataset are unknown, with some words that contain them."""

    count: int
    total: int
    words: tuple[str, ...]

    @property
    def share(self) -> float:
        """Fraction of the tokens."""
        return self.count / max(1, self.total)

    def __str__(self) -> str:
        """The numbers and the words, for messages."""
        words = ", ".join(map(repr, self.words))
        return (
            f"{self.count:,} of {self.total:,} tokens ({self.share:.1%}) are unknown to the "
            f"tokenizer, e.g. of {words}"
        )


def count_unknown(
    tokenizer: PreTrainedTokenizerBase,
    rows: Iterable[DataRow],
    sequences: Iterable[Sequence[int]],
) -> Unknown:
    """Count unknown tokens.

    Args:
        tokenizer: one without an unknown token knows everything.
        rows: of the dataset, to find the words.
        sequences: token ids of the rows.
    """
    number = _unknown_id(tokenizer)
    if number is None:
        return Unknown(0, 0, ())
    counts = [(ids.count(number), len(ids)) for ids in sequences]
    found = sum(count for count, _ in counts)
    words = _words(tokenizer, rows, number) if found else ()
    return Unknown(found, sum(size for _, size in counts), words)


def require_known(found: Unknown, limit: float) -> None:
    """Warn about unknown tokens.

    Raises:
        DataError: if there are more than `limit`.
    """
    if found.share > limit:
        raise DataError(
            f"{found}; the limit `unknown_limit` is {limit:.1%}: use a tokenizer that knows them, "
            "remove such rows, or raise the limit"
        )
    if found.count:
        log.warning("%s", found)


def _unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    number = tokenizer.unk_token_id
    others = (tokenizer.eos_token_id, tokenizer.bos_token_id)
    # GPT-2 calls its end token the unknown token, too, and knows every byte.
    return number if isinstance(number, int) and number not in others else None


def _words(
    tokenizer: PreTrainedTokenizerBase, rows: Iterable[DataRow], number: int
) -> tuple[str, ...]:
    texts = [_text(row) for row in rows]
    found: dict[str, None] = {}
    searched = 0
    for text, ids in zip(texts, tokenise(tokenizer, texts), strict=True):
        if number not in ids:
            continue
        words = text.split()
        pieces = zip(words, tokenise(tokenizer, words), strict=True)
        found |= {word[:40]: None for word, piece in pieces if number in piece}
        searched += 1
        if len(found) >= SHOWN_WORDS or searched == SEARCHED_ROWS:
            break
    return tuple(found)[:SHOWN_WORDS]


def _text(row: DataRow) -> str:
    if isinstance(row, str):
        return row
    said = [message["content"] for message in row.prompt]
    if isinstance(row, Demonstration | UnpairedResponse):
        said.append(row.response)
    elif isinstance(row, Preference):
        said += [row.chosen, row.rejected]
    elif isinstance(row, Solution):
        said += row.steps
    return " ".join(said)
