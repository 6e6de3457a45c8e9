"""From rows to tokenised examples.

Rows longer than `max_tokens` are dropped, and the log states how many. Only plain texts are cut.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from stages.datasets import Demonstration, Messages, Preference, Solution, UnpairedResponse
from training_core.data.chat import encode_prompts, encode_responses
from training_core.data.conversations import TrainOn, encode_conversations
from training_core.data.documents import encode_documents
from training_core.data.steps import encode_steps
from training_core.data.templates import with_reward
from training_core.errors import DataError
from training_core.types import Example, LabelledSolution, Pair, Prompt, UnpairedExample

T = TypeVar("T")
log = logging.getLogger(__name__)


def encode_demonstrations(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Demonstration],
    *,
    max_tokens: int,
    train_on: TrainOn = "every_turn",
    reward_suffix: str | None = None,
) -> list[Example]:
    """Tokenise demonstrations.

    Args:
        tokenizer: with a chat template and an end token.
        rows: from `stages.datasets`.
        max_tokens: limit of prompt and response together.
        train_on: the turns of a conversation to train on; see `encode_conversations`.
        reward_suffix: a format with `{reward}` that is put after each prompt (conditional SFT).

    Raises:
        DataError: for a row without tokens to train on, or without a reward if `reward_suffix`
            needs one.
    """
    return _kept(
        demonstration_examples(
            tokenizer, rows, max_tokens=max_tokens, train_on=train_on, reward_suffix=reward_suffix
        ),
        max_tokens,
    )


def demonstration_examples(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Demonstration],
    *,
    max_tokens: int,
    train_on: TrainOn = "every_turn",
    reward_suffix: str | None = None,
) -> list[Example | None]:
    """Tokenise demonstrations; None where a row is too long. See `encode_demonstrations`."""
    asked = [row.prompt for row in rows]
    if reward_suffix is not None:
        asked = [_rewarded(i, row, reward_suffix) for i, row in enumerate(rows, 1)]
    return encode_conversations(
        tokenizer,
        _names(asked),
        asked,
        [row.response for row in rows],
        max_tokens=max_tokens,
        train_on=train_on,
        is_finished=[row.is_finished for row in rows],
    )


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[str],
    *,
    max_tokens: int,
    add_eos: bool = True,
) -> list[Example]:
    """Tokenise plain texts, cut into windows of `max_tokens`; see `encode_documents`."""
    return encode_documents(tokenizer, rows, max_tokens=max_tokens, add_eos=add_eos)


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference], *, max_tokens: int
) -> list[Pair]:
    """Tokenise pairs; a pair is as long as its longer side."""
    return _kept(pair_examples(tokenizer, rows, max_tokens=max_tokens), max_tokens)


def pair_examples(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference], *, max_tokens: int
) -> list[Pair | None]:
    """Tokenise pairs; None where a side is too long."""
    prompts = _prompts(tokenizer, [row.prompt for row in rows])
    chosen = encode_responses(
        tokenizer,
        prompts,
        [row.chosen for row in rows],
        max_tokens=max_tokens,
        is_finished=[row.chosen_finished for row in rows],
    )
    rejected = encode_responses(
        tokenizer,
        prompts,
        [row.rejected for row in rows],
        max_tokens=max_tokens,
        is_finished=[row.rejected_finished for row in rows],
    )
    return [
        Pair(one, other, row.margin) if one and other else None
        for row, one, other in zip(rows, chosen, rejected, strict=True)
    ]


def encode_unpaired(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[UnpairedResponse], *, max_tokens: int
) -> list[UnpairedExample]:
    """Tokenise responses that were rated one by one."""
    return _kept(unpaired_examples(tokenizer, rows, max_tokens=max_tokens), max_tokens)


def unpaired_examples(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[UnpairedResponse], *, max_tokens: int
) -> list[UnpairedExample | None]:
    """Tokenise rated responses; None where a row is too long."""
    examples = encode_responses(
        tokenizer,
        _prompts(tokenizer, [row.prompt for row in rows]),
        [row.response for row in rows],
        max_tokens=max_tokens,
        is_finished=[row.is_finished for row in rows],
    )
    return [
        UnpairedExample(example, row.is_desirable) if example else None
        for row, example in zip(rows, examples, strict=True)
    ]


def encode_solutions(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Solution],
    *,
    max_tokens: int,
    separator: str = "\n",
) -> list[LabelledSolution]:
    """Tokenise solutions in steps; see `encode_steps`."""
    return _kept(
        solution_examples(tokenizer, rows, max_tokens=max_tokens, separator=separator), max_tokens
    )


def solution_examples(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Solution],
    *,
    max_tokens: int,
    separator: str = "\n",
) -> list[LabelledSolution | None]:
    """Tokenise solutions in steps; None where a row is too long."""
    return encode_steps(
        tokenizer,
        [row.prompt for row in rows],
        [row.steps for row in rows],
        [row.labels for row in rows],
        max_tokens=max_tokens,
        separator=separator,
    )


def _prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Messages]) -> list[Prompt]:
    return encode_prompts(tokenizer, _names(prompts), prompts)


def _names(rows: Sequence[object]) -> list[str]:
    return [str(number) for number in range(1, len(rows) + 1)]


def _rewarded(number: int, row: Demonstration, suffix: str) -> Messages:
    try:
        return with_reward(row.prompt, row.reward, suffix)
    except DataError as error:
        raise DataError(f"row {number}: {error}") from error


def _kept(encoded: Sequence[T | None], max_tokens: int) -> list[T]:
    kept = [e for e in encoded if e is not None]
    if len(kept) < len(encoded):
        log.warning(
            "%d of %d rows are longer than max_tokens=%d and were dropped",
            len(encoded) - len(kept),
            len(encoded),
            max_tokens,
        )
    return kept
