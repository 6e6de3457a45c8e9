"""From rows to tokenised examples.

Rows longer than `max_tokens` are dropped, and the log states how many. Only plain texts are cut.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from stages.batches.sequences import examples_in
from stages.batches.unknown_tokens import count_unknown, require_known
from stages.datasets import (
    DataRow,
    Demonstration,
    Preference,
    Solution,
    UnpairedResponse,
    row_names,
)
from training_core.data.chat import encode_prompts, encode_responses
from training_core.data.conversations import TrainOn, encode_conversations
from training_core.data.documents import encode_documents
from training_core.data.steps import encode_steps
from training_core.data.templates import with_reward
from training_core.errors import DataError
from training_core.messages import Messages
from training_core.types import Example, LabelledSolution, Pair, Prompt, UnpairedExample

T = TypeVar("T", Example, Pair, UnpairedExample, LabelledSolution)
log = logging.getLogger(__name__)

SHOWN_ROWS = 5


def encode_demonstrations(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Demonstration],
    *,
    max_tokens: int,
    train_on: TrainOn = "every_turn",
    reward_suffix: str | None = None,
    unknown_limit: float = 1.0,
) -> list[Example]:
    """Tokenise demonstrations.

    Args:
        tokenizer: with a chat template and an end token.
        rows: from `stages.datasets`.
        max_tokens: limit of prompt and response together.
        train_on: the turns of a conversation to train on; see `encode_conversations`.
        reward_suffix: a format with `{reward}` that is put after each prompt (conditional SFT).
        unknown_limit: largest allowed share of unknown tokens.

    Raises:
        DataError: for a row without tokens to train on, or without a reward if `reward_suffix`
            needs one; if every row is too long, or too many tokens are unknown.
    """
    examples = demonstration_examples(
        tokenizer, rows, max_tokens=max_tokens, train_on=train_on, reward_suffix=reward_suffix
    )
    return kept(tokenizer, rows, examples, max_tokens, unknown_limit)


def demonstration_examples(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Demonstration],
    *,
    max_tokens: int,
    train_on: TrainOn = "every_turn",
    reward_suffix: str | None = None,
) -> list[Example | None]:
    """Tokenise demonstrations; None where a row is too long. See `encode_demonstrations`."""
    prompts = [row.prompt for row in rows]
    if reward_suffix is not None:
        named = zip(row_names(rows), rows, strict=True)
        prompts = [_rewarded(name, row, reward_suffix) for name, row in named]
    return encode_conversations(
        tokenizer,
        row_names(rows),
        prompts,
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
    unknown_limit: float = 1.0,
) -> list[Example]:
    """Tokenise plain texts, cut into windows of `max_tokens`; see `encode_documents`."""
    examples = encode_documents(tokenizer, rows, max_tokens=max_tokens, add_eos=add_eos)
    sequences = (example.input_ids for example in examples)
    require_known(count_unknown(tokenizer, rows, sequences), unknown_limit)
    return examples


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Preference],
    *,
    max_tokens: int,
    unknown_limit: float = 1.0,
) -> list[Pair]:
    """Tokenise pairs; a pair is as long as its longer side.

    Pairs whose two sides are the same tokens prefer nothing; they are dropped and counted.

    Raises:
        DataError: if every pair is one of these; if every row is too long, or too many tokens are
            unknown.
    """
    found = pair_examples(tokenizer, rows, max_tokens=max_tokens)
    equal = {i for i, pair in enumerate(found, 1) if pair and pair.chosen == pair.rejected}
    if equal:
        shown = ", ".join(map(str, sorted(equal)[:SHOWN_ROWS]))
        text = (
            f"{len(equal)} of {len(rows)} pairs have the same tokens as chosen and rejected "
            f"(row {shown}{', …' if len(equal) > SHOWN_ROWS else ''})"
        )
        if len(equal) == len(found):
            raise DataError(f"{text}, so nothing can be learned from them; use other pairs")
        log.warning("%s; they prefer nothing and were dropped", text)
    left = [
        (row, p) for i, (row, p) in enumerate(zip(rows, found, strict=True), 1) if i not in equal
    ]
    return kept(
        tokenizer, [row for row, _ in left], [p for _, p in left], max_tokens, unknown_limit
    )


def pair_examples(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference], *, max_tokens: int
) -> list[Pair | None]:
    """Tokenise pairs; None where a side is too long."""
    prompts = _prompts(tokenizer, rows)
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
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[UnpairedResponse],
    *,
    max_tokens: int,
    unknown_limit: float = 1.0,
) -> list[UnpairedExample]:
    """Tokenise responses that were rated one by one."""
    examples = unpaired_examples(tokenizer, rows, max_tokens=max_tokens)
    return kept(tokenizer, rows, examples, max_tokens, unknown_limit)


def unpaired_examples(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[UnpairedResponse], *, max_tokens: int
) -> list[UnpairedExample | None]:
    """Tokenise rated responses; None where a row is too long."""
    examples = encode_responses(
        tokenizer,
        _prompts(tokenizer, rows),
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
    unknown_limit: float = 1.0,
) -> list[tuple[Solution, LabelledSolution]]:
    """Tokenise solutions in steps, see `encode_steps`; return each with its row."""
    examples = solution_examples(tokenizer, rows, max_tokens=max_tokens, separator=separator)
    kept(tokenizer, rows, examples, max_tokens, unknown_limit)  # refuses, and logs
    return [(row, example) for row, example in zip(rows, examples, strict=True) if example]


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
        names=row_names(rows),
        max_tokens=max_tokens,
        separator=separator,
    )


def _prompts(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference | UnpairedResponse]
) -> list[Prompt]:
    return encode_prompts(tokenizer, row_names(rows), [row.prompt for row in rows])


def _rewarded(name: str, row: Demonstration, suffix: str) -> Messages:
    try:
        return with_reward(row.prompt, row.reward, suffix)
    except DataError as error:
        raise DataError(f"prompt {name}: {error}") from error


def kept(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[DataRow],
    encoded: Sequence[T | None],
    max_tokens: int,
    unknown_limit: float,
) -> list[T]:
    """Drop rows that are too long, and refuse a dataset of which nothing or too little is left."""
    short = [e for e in encoded if e is not None]
    if rows and not short:
        raise DataError(
            f"each of the {len(rows)} rows is longer than max_tokens={max_tokens}; raise it"
        )
    if len(short) < len(encoded):
        log.warning(
            "%d of %d rows are longer than max_tokens=%d and were dropped",
            len(encoded) - len(short),
            len(encoded),
            max_tokens,
        )
    sequences = (example.input_ids for e in short for example in examples_in(e))
    some = [row for row, e in zip(rows, encoded, strict=True) if e is not None]
    require_known(count_unknown(tokenizer, some, sequences), unknown_limit)
    return short
