"""The datasets that a step reads, the kind of their rows, and how the step encodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from stages.batches import encoding
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.data_config import (
    CafeDataConfig,
    FileDataConfig,
    HubDataConfig,
    MixedDataConfig,
)
from stages.configs.stage_record import DatasetUse, RowsName
from stages.datasets import kinds
from stages.datasets.kinds import RowKind
from stages.datasets.row_types import PromptRow
from training_core.data.chat import encode_prompts
from training_core.types import Prompt

Encode = Callable[..., Sequence[Any]]
"""(tokenizer, rows, max_tokens=…) -> examples, pairs, …; None for each row that is too long."""

DataSource = CafeDataConfig | FileDataConfig | HubDataConfig


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
        is_training: whether the step trains on the rows.
    """

    step: str
    field: str
    data: DataSource
    kind: RowKind[Any]
    encode: Encode
    max_tokens: int
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
        data = getattr(config, field)
        if data is not None:
            kind, encode = _rows_of(use, config)
            limit = _max_tokens(config, field)
            for name, source in _parts(field, data):
                yield Dataset(step, name, source, kind, encode, limit, use.is_trained_on)


def _parts(field: str, data: DataSource | MixedDataConfig) -> list[tuple[str, DataSource]]:
    if isinstance(data, MixedDataConfig):
        return [(f"{field}.parts.{i}", part.data) for i, part in enumerate(data.parts)]
    return [(field, data)]


def _rows_of(use: DatasetUse, config: StageConfig) -> tuple[RowKind[Any], Encode]:
    """Return how the stage reads and encodes such rows, with the options of its config."""
    options = partial(_options_in, config)
    return ROWS[options("rows").get("rows", use.rows)](options)


def _options_in(config: StageConfig, *fields: str) -> dict[str, Any]:
    """Return the values of those fields that the config has."""
    return {name: getattr(config, name) for name in fields if name in type(config).model_fields}


def _encode_prompts(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[PromptRow], *, max_tokens: int
) -> list[Prompt | None]:
    names = [str(i) for i in range(1, len(rows) + 1)]
    found = encode_prompts(tokenizer, names, [row.prompt for row in rows])
    return [prompt if len(prompt.input_ids) <= max_tokens else None for prompt in found]


ROWS: dict[RowsName, Callable[[Callable[..., Any]], tuple[RowKind[Any], Encode]]] = {
    "prompts": lambda _: (kinds.PROMPTS, _encode_prompts),
    "texts": lambda _: (kinds.TEXTS, encoding.encode_texts),
    "demonstrations": lambda options: (
        kinds.DEMONSTRATIONS,
        partial(encoding.demonstration_examples, **options("train_on", "reward_suffix")),
    ),
    "preferences": lambda _: (kinds.PREFERENCES, encoding.pair_examples),
    "unpaired_responses": lambda options: (
        kinds.unpaired_responses(options("threshold")["threshold"]),
        encoding.unpaired_examples,
    ),
    "solutions": lambda options: (
        kinds.solutions(**options("placeholder", "first_step")),
        partial(encoding.solution_examples, **options("separator")),
    ),
}
"""Kind of rows -> how they are read and encoded, with the options of the config."""


def _max_tokens(config: Any, field: str) -> int:
    if field == "prompts":
        return config.rollouts.max_tokens - config.rollouts.max_response_tokens
    return config.training.max_tokens
