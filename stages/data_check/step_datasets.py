"""The datasets that a step reads, the kind of their rows, and how the step encodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from stages.batches import encoding
from stages.batches.sequences import Encoded
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.stage_record import DatasetUse, RowsName
from stages.datasets.configured import SingleSource, datasets_at, kind_of, rows_name
from stages.datasets.kinds import RowKind
from stages.datasets.row_types import PromptRow, row_names
from training_core.data.chat import encode_prompts
from training_core.types import Prompt

Encode = Callable[..., Sequence[Encoded | None]]
"""(tokenizer, rows, max_tokens=…) -> examples, pairs, …; None for each row that is too long."""


@dataclass(frozen=True)
class Dataset:
    """A dataset that a step reads.

    Attributes:
        step: name of the preset's block.
        field: dotted name of the field in the block.
        data: source of the rows; a mixture gives one dataset per part.
        kind: kind of the rows.
        encode: how the step tokenises the rows.
        max_tokens: longer rows are dropped.
        unknown_limit: largest share of unknown tokens with which the step runs.
        is_training: whether the step trains on the rows.
    """

    step: str
    field: str
    data: SingleSource
    kind: RowKind[Any]
    encode: Encode
    max_tokens: int
    unknown_limit: float
    is_training: bool

    @property
    def name(self) -> str:
        """Dotted name, as in an override."""
        return f"{self.step}.{self.field}"


def datasets_of(step: str, config: StageConfig) -> Iterator[Dataset]:
    """Yield the datasets that a step's config names; those of other steps do not exist yet.

    Args:
        step: name of the preset's block.
        config: config of any stage; the stage's record lists which of its fields are datasets.
    """
    for field, use in stage_of(config).reads.items():
        for name, source in datasets_at(config, field):
            kind, encode = kind_of(use, config), _encode_of(use, config)
            limits = _max_tokens(config, field), _unknown_limit(config, field)
            yield Dataset(step, name, source, kind, encode, *limits, use.is_trained_on)


def _encode_of(use: DatasetUse, config: StageConfig) -> Encode:
    """Return how the stage encodes such rows, with the options of its config."""
    return ENCODERS[rows_name(use, config)](partial(_options_in, config))


def _options_in(config: StageConfig, *fields: str) -> dict[str, Any]:
    """Return the values of those fields that the config has."""
    return {name: getattr(config, name) for name in fields if name in type(config).model_fields}


def _encode_prompts(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[PromptRow], *, max_tokens: int
) -> list[Prompt | None]:
    found = encode_prompts(tokenizer, row_names(rows), [row.prompt for row in rows])
    return [prompt if len(prompt.input_ids) <= max_tokens else None for prompt in found]


ENCODERS: dict[RowsName, Callable[[Callable[..., Any]], Encode]] = {
    "prompts": lambda _: _encode_prompts,
    "texts": lambda _: encoding.encode_texts,
    "demonstrations": lambda options: partial(
        encoding.demonstration_examples, **options("train_on", "reward_suffix")
    ),
    "preferences": lambda _: encoding.pair_examples,
    "unpaired_responses": lambda _: encoding.unpaired_examples,
    "solutions": lambda options: partial(encoding.solution_examples, **options("separator")),
}
"""Kind of rows -> how they are encoded, with the options of the config."""


def _max_tokens(config: Any, field: str) -> int:
    if _are_prompts(field):
        return config.rollouts.max_tokens - config.rollouts.max_response_tokens
    return _limits_of(config, field).max_tokens


def _unknown_limit(config: Any, field: str) -> float:
    return _limits_of(config, field).unknown_limit


def _limits_of(config: Any, field: str) -> Any:
    """Return the block with the limits of a field's rows."""
    is_sampled = _are_prompts(field) or field == "pretraining_data"
    return config.rollouts if is_sampled else config.training


def _are_prompts(field: str) -> bool:
    return field.rpartition(".")[2] in ("prompts", "exclude")
