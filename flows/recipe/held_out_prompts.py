"""The prompts of the evaluation must not be in data that any step trains on.

The same holds for the held-out prompts of PPO and the data of PPO. If PPO publishes the weights
that are best on its held-out prompts, the evaluation must not use these either: weights that were
chosen by some prompts look too good on them. Prompts are compared word for word. A flow does it
before its first step, without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flows.config.lifecycle_config import LifecycleConfig
from stages.catalog import stage_of
from stages.configs.data_config import DataConfig, HubDataConfig
from stages.configs.ppo_config import PpoConfig
from stages.datasets import read
from stages.datasets.configured import (
    SingleSource,
    answered_prompt_keys,
    datasets_at,
    kind_of,
    prompt_key,
    prompts_without,
    sources_in,
)
from stages.datasets.kinds import RowKind
from training_core.errors import DataError

JUDGED = "evaluation.prompts"
SHOWN = 80
"""Characters of an example prompt in a message."""


@dataclass(frozen=True)
class TrainedSource:
    """A source that a step trains on; `name` is dotted, as in an override."""

    name: str
    kind: RowKind[Any]
    data: SingleSource

    @property
    def is_on_hub(self) -> bool:
        """Whether reading it may be a download."""
        return _is_on_hub(self.data)


@dataclass(frozen=True)
class HeldOutSource:
    """Prompts for an evaluation.

    Attributes:
        name: dotted, as in an override.
        prompts: the prompts.
        exclude: what is left out of them.
        trained: beginning of the names of the sources that must not have them.
        selects: whether weights are chosen by their rewards.
    """

    name: str
    prompts: DataConfig
    exclude: DataConfig | None
    trained: str = ""
    selects: bool = False

    @property
    def sources(self) -> list[SingleSource]:
        """Everything that is read for them."""
        given = [data for data in (self.prompts, self.exclude) if data is not None]
        return [source for data in given for _, source in sources_in("", data)]

    def numbers(self, first_rows: int | None) -> dict[str, int]:
        """Return the number of each prompt, by its key."""
        rows = prompts_without(self.prompts, self.exclude)[:first_rows]
        return {prompt_key(row): number for number, row in enumerate(rows, 1)}


def require_unseen_prompts(config: LifecycleConfig) -> None:
    """Check that no step trains on a prompt of the evaluation, or chooses its weights by one.

    Raises:
        DataError: naming each source that shares prompts, how many, and one of them; for a source
            that cannot be read.
    """
    if found := shared_prompts(config):
        raise DataError(
            "the evaluation would judge weights by prompts that trained or chose them:\n  "
            + "\n  ".join(found)
            + "\nchoose other prompts, or leave the shared ones out with `evaluation.exclude`"
        )


def shared_prompts(
    config: LifecycleConfig, first_rows: int | None = None, *, downloads: bool = True
) -> list[str]:
    """Describe every source that has held-out prompts and must not have them.

    Args:
        config: the lifecycle; of all its blocks, so that a policy of any flow can be judged.
        first_rows: compare only so many rows of each source; None compares all.
        downloads: also read datasets of the hub, which downloads those that are not in the cache.

    Raises:
        DataError: for a source that cannot be read.
    """
    trained = list(_trained_sources(config))
    found: list[str] = []
    judged: dict[str, int] = {}
    for held_out in _held_out_sources(config):
        if not downloads and any(map(_is_on_hub, held_out.sources)):
            continue
        numbers = held_out.numbers(first_rows)
        for source in trained:
            if source.name.startswith(held_out.trained) and (downloads or not source.is_on_hub):
                places = _places_of(numbers, source, first_rows)
                found += _described(held_out.name, numbers, source.name, places)
        if held_out.name == JUDGED:
            judged = numbers
        elif held_out.selects:
            places = {key: row for key, row in numbers.items() if key in judged}
            by_which = f"{held_out.name} (by which the weights are chosen)"
            found += _described(JUDGED, judged, by_which, places)
    return found


def _described(
    name: str, held_out: Mapping[str, int], source: str, places: Mapping[str, int]
) -> list[str]:
    if not places:
        return []
    key, row = next(iter(places.items()))
    return [
        f"{len(places)} of {len(held_out)} different prompts of {name} are also in {source}, "
        f"word for word; e.g. prompt {held_out[key]} is in row {row}: {key:.{SHOWN}}"
    ]


def _held_out_sources(config: LifecycleConfig) -> Iterator[HeldOutSource]:
    """Yield the prompts of the evaluation first."""
    if (judged := config.evaluation) is not None:
        yield HeldOutSource(JUDGED, judged.prompts, judged.exclude)
    for block, stage in config.stages().items():
        if isinstance(stage, PpoConfig) and stage.evaluation is not None:
            evaluation = stage.evaluation
            for i, each in enumerate(evaluation.prompts):
                name = f"{block}.evaluation.prompts.{i}"
                yield HeldOutSource(
                    name,
                    each.data,
                    evaluation.exclude,
                    trained=f"{block}.",
                    selects=evaluation.export == "best",
                )


def _is_on_hub(data: SingleSource) -> bool:
    return isinstance(data, HubDataConfig)


def _trained_sources(config: LifecycleConfig) -> Iterator[TrainedSource]:
    for block, stage in config.stages().items():
        for field, use in stage_of(stage).reads.items():
            if use.is_trained_on:
                for name, source in datasets_at(stage, field):
                    yield TrainedSource(f"{block}.{name}", kind_of(use, stage), source)


def _places_of(
    held_out: Mapping[str, int], source: TrainedSource, first_rows: int | None
) -> dict[str, int]:
    """Return key -> number of the first good row, for the held-out prompts in a source."""
    try:
        rows = read(source.kind, source.data, first_rows).rows
    except DataError as error:
        raise DataError(f"{source.name}: {error}") from error
    places: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        for key in answered_prompt_keys(row):
            if key in held_out:
                places.setdefault(key, number)
    return places
