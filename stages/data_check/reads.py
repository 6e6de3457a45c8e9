"""Which datasets a step reads, what their rows are, and how the step encodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stages import encoding
from stages.contract import StageConfig
from stages.datasets import FIRST_STEP, PLACEHOLDER, kinds
from stages.settings.data import CafeData, FileData, HubData, MixedData
from training_core.data.chat import encode_prompts

Encode = Callable[..., Sequence[Any]]
"""(tokenizer, rows, max_tokens=…) -> examples, pairs, …; None for a row that is too long."""

OneSource = CafeData | FileData | HubData


@dataclass(frozen=True)
class Dataset:
    """A dataset that a step reads.

    Attributes:
        step: block of the preset.
        field: dotted, below it.
        data: where the rows come from; a mixture comes as its parts.
        kind: what the rows are.
        encode: how the step tokenises them.
        max_tokens: rows over this are dropped.
        is_training: whether the step learns from it.
    """

    step: str
    field: str
    data: OneSource
    kind: kinds.Kind[Any]
    encode: Encode
    max_tokens: int
    is_training: bool

    @property
    def name(self) -> str:
        """Dotted, as a person writes it."""
        return f"{self.step}.{self.field}"


def datasets_of(step: str, config: StageConfig) -> Iterator[Dataset]:
    """Yield the datasets that a step's config names itself; what the graph gives is not there yet.

    Args:
        step: block of the preset.
        config: of any stage; its fields `data`, `eval_data` and `prompts` are looked at.
    """
    for field in type(config).model_fields:
        data = getattr(config, field)
        if isinstance(data, OneSource | MixedData):
            kind, encode = _kind_of(config, field)
            limit = _max_tokens(config, field)
            for name, source in _parts(field, data):
                yield Dataset(step, name, source, kind, encode, limit, field == "data")


def _parts(field: str, data: OneSource | MixedData) -> list[tuple[str, OneSource]]:
    if isinstance(data, MixedData):
        return [(f"{field}.parts.{i}", part.data) for i, part in enumerate(data.parts)]
    return [(field, data)]


def _kind_of(config: StageConfig, field: str) -> tuple[kinds.Kind[Any], Encode]:
    if field == "prompts":
        return kinds.PROMPTS, _encode_prompts
    return ROWS_OF[type(config).__module__.removeprefix("stages.")](config)


def _sft(config: Any) -> tuple[kinds.Kind[Any], Encode]:
    if config.rows == "texts":
        return kinds.TEXTS, encoding.encode_texts
    options = {"train_on": config.train_on, "reward_suffix": config.reward_suffix}
    return kinds.DEMONSTRATIONS, partial(encoding.demonstration_examples, **options)


ROWS_OF: dict[str, Callable[[Any], tuple[kinds.Kind[Any], Encode]]] = {
    "sft": _sft,
    "distillation": lambda _: (kinds.DEMONSTRATIONS, encoding.demonstration_examples),
    "reward_model": lambda _: (kinds.PREFERENCES, encoding.pair_examples),
    "dpo": lambda _: (kinds.PREFERENCES, encoding.pair_examples),
    "kto": lambda _: (kinds.ratings(None), encoding.rating_examples),
    "process_reward": lambda _: (
        kinds.solutions(PLACEHOLDER, FIRST_STEP),
        encoding.solution_examples,
    ),
}
"""Stage page -> what its `data` and `eval_data` hold, read and encoded as the stage does."""


def _encode_prompts(tokenizer: Any, rows: Sequence[Any], *, max_tokens: int) -> list[Any]:
    names = [str(i) for i in range(1, len(rows) + 1)]
    found = encode_prompts(tokenizer, names, rows)
    return [prompt if len(prompt.input_ids) <= max_tokens else None for prompt in found]


def _max_tokens(config: Any, field: str) -> int:
    if field == "prompts":
        return config.rollouts.max_tokens - config.rollouts.max_response_tokens
    return config.training.max_tokens
