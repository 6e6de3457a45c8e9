"""The rows that the datasets of a stage's config have, and the identity of their prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stages.configs.block import StageConfig
from stages.configs.data_config import (
    CafeDataConfig,
    DataConfig,
    FileDataConfig,
    HubDataConfig,
    MixedDataConfig,
)
from stages.configs.stage_record import DatasetUse, RowsName
from stages.datasets import kinds
from stages.datasets.kinds import RowKind
from stages.datasets.reading import load
from stages.datasets.row_types import DataRow, PromptRow
from training_core.errors import DataError
from training_core.messages import Messages

SingleSource = CafeDataConfig | FileDataConfig | HubDataConfig


def kind_of(use: DatasetUse, config: StageConfig) -> RowKind[Any]:
    """Return the kind of a dataset's rows, as the stage of this config reads them."""
    return KINDS[rows_name(use, config)](config)


def rows_name(use: DatasetUse, config: StageConfig) -> RowsName:
    """Return the kind's name: the config's field `rows`, or else what the stage's record says."""
    return getattr(config, "rows", use.rows)


KINDS: Mapping[RowsName, Callable[[Any], RowKind[Any]]] = {
    "prompts": lambda _: kinds.PROMPTS,
    "texts": lambda _: kinds.TEXTS,
    "demonstrations": lambda _: kinds.DEMONSTRATIONS,
    "preferences": lambda _: kinds.PREFERENCES,
    "unpaired_responses": lambda config: kinds.unpaired_responses(config.threshold),
    "solutions": lambda config: kinds.solutions(config.placeholder, config.first_step),
}
"""Kind of rows -> how they are read, with the options of the config."""


def sources_in(field: str, data: DataConfig) -> list[tuple[str, SingleSource]]:
    """Return (dotted field, source) of a dataset; a mixture gives one per part."""
    if isinstance(data, MixedDataConfig):
        return [(f"{field}.parts.{i}", part.data) for i, part in enumerate(data.parts)]
    return [(field, data)]


def datasets_at(config: StageConfig, field: str) -> list[tuple[str, SingleSource]]:
    """Return (dotted field, source) of all datasets in a field that a stage's record names.

    Args:
        config: of the stage.
        field: a dataset, or a list of labelled ones; dotted for a field of a block. If it, or its
            block, is None, there are none.
    """
    found: Any = config
    for name in field.split("."):
        found = None if found is None else getattr(found, name)
    if found is None:
        return []
    if not isinstance(found, tuple):
        return sources_in(field, found)
    return [s for i, each in enumerate(found) for s in sources_in(f"{field}.{i}.data", each.data)]


def prompt_of(row: DataRow) -> str | Messages:
    """Return the prompt of a row; of a plain text, the text."""
    return row if isinstance(row, str) else row.prompt


def prompt_key(row: DataRow) -> str:
    """Return a text that is equal for rows with the same prompt (or, for texts, the same text)."""
    return key_of(prompt_of(row))


def answered_prompts(row: DataRow) -> Iterator[str | Messages]:
    """Yield a row's prompt, and everything before an earlier answer in it."""
    prompt = prompt_of(row)
    yield prompt
    if not isinstance(prompt, str):
        for place, message in enumerate(prompt):
            if message["role"] == "assistant":
                yield prompt[:place]


def answered_prompt_keys(row: DataRow) -> Iterator[str]:
    """Yield the keys of `answered_prompts`."""
    return map(key_of, answered_prompts(row))


def key_of(prompt: str | Messages) -> str:
    """Return the key of a prompt; see `prompt_key`."""
    return prompt if isinstance(prompt, str) else repr([(m["role"], m["content"]) for m in prompt])


def text_of(prompt: str | Messages) -> str:
    """Return what a prompt says, without who says it."""
    return prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)


def prompts_without(data: DataConfig, excluded: DataConfig | None) -> list[PromptRow]:
    """Load prompts, except those that `excluded` has too, word for word.

    Raises:
        DataError: see `stages.datasets.prompts`; if none is left.
    """
    rows = load(kinds.PROMPTS, data)
    if excluded is None:
        return rows
    known = {key for row in load(kinds.PROMPTS, excluded) for key in answered_prompt_keys(row)}
    kept = [row for row in rows if prompt_key(row) not in known]
    if not kept:
        raise DataError(
            f"expected prompts that are not in `exclude`, found all {len(rows)} in it; "
            "choose other prompts"
        )
    return kept
