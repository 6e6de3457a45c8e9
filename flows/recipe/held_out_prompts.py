"""The prompts of the evaluation must not be in data that any step trains on.

The same holds for the held-out prompts of PPO and the data of PPO. If PPO publishes the weights
that are best on its held-out prompts, the evaluation must not use these either: weights that were
chosen by some prompts look too good on them. Prompts are compared word for word, and those of the
evaluation also by their similarity (`near_duplicates`), with the data of this preset and of the
models that it starts from. A flow does it before its first step, without torch. Rows are read one
after another, and only the held-out prompts stay in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.near_duplicates import NearDuplicates
from flows.recipe.trained_sources import TrainedSource, is_on_hub, trained_sources
from stages.configs.data_config import DataConfig
from stages.configs.ppo_config import PpoConfig
from stages.datasets import stream
from stages.datasets.configured import (
    SingleSource,
    answered_prompts,
    key_of,
    prompt_key,
    prompts_without,
    sources_in,
    text_of,
)
from training_core.errors import DataError

log = logging.getLogger("ratchet.flows")

JUDGED = "evaluation.prompts"
SHOWN = 80
"""Characters of an example prompt in a message."""

BATCH = 4096
"""Prompts that are compared at once; all that is in memory of what was trained on."""

NAMED = 3
"""Near duplicates that a message names."""


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


class AskedPrompt(NamedTuple):
    """A prompt of a source that is trained on: its text, its key, and the number of its row."""

    text: str
    key: str
    row: int


@dataclass
class Watched:
    """The prompts of a held-out source, and where they were found so far.

    Attributes:
        source: where they are from.
        numbers: number of each prompt, by its key.
        texts: numbers of the prompts with a text, by the text.
        near: finds texts like theirs; None if only the same words count.
        same: of the present source: key of a prompt -> row with the same prompt.
        alike: of the present source: number of a prompt -> (row, similarity).
        seen_same: numbers of all prompts that were found in any source.
        seen_alike: the same for near duplicates.
    """

    source: HeldOutSource
    numbers: Mapping[str, int]
    texts: Mapping[str, list[int]]
    near: NearDuplicates | None
    same: dict[str, int] = field(default_factory=dict)
    alike: dict[int, tuple[int, float]] = field(default_factory=dict)
    seen_same: set[int] = field(default_factory=set)
    seen_alike: set[int] = field(default_factory=set)

    def look_at(self, prompts: Sequence[AskedPrompt]) -> None:
        """Note prompts of the present source that this source has, too, or that are like its."""
        others = [prompt for prompt in prompts if prompt.key not in self.numbers]
        for prompt in prompts:
            if prompt.key in self.numbers:
                self.same.setdefault(prompt.key, prompt.row)
        if self.near is not None:
            for place, text, similarity in self.near.like([each.text for each in others]):
                for number in self.texts[text]:
                    self.alike.setdefault(number, (others[place].row, similarity))

    def finish(self, name: str) -> Iterator[tuple[bool, str]]:
        """Yield (whether word for word, description) of what a source has; begin with the next."""
        if self.same:
            self.seen_same |= {self.numbers[key] for key in self.same}
            yield True, _described(self.source.name, self.numbers, name, self.same)
        if self.alike:
            self.seen_alike |= self.alike.keys()
            examples = list(self.alike.items())[:NAMED]
            told = "; ".join(
                f"prompt {number} and row {row} ({similarity:.2f})"
                for number, (row, similarity) in examples
            )
            yield (
                False,
                f"{len(self.alike)} of {len(self.numbers)} different prompts of "
                f"{self.source.name} are nearly the same in {name}; e.g. {told}",
            )
        self.same, self.alike = {}, {}


def require_unseen_prompts(
    config: LifecycleConfig, inherited: Sequence[TrainedSource] = ()
) -> None:
    """Check that no step trains on a prompt of the evaluation, or chooses its weights by one.

    Args:
        config: the lifecycle.
        inherited: what the models that it starts from were trained on.

    Raises:
        DataError: naming each source that shares prompts, how many, and one of them; for a source
            that cannot be read.
    """
    if found := shared_prompts(config, inherited=inherited):
        raise DataError(
            "the evaluation would judge weights by prompts that trained or chose them:\n  "
            + "\n  ".join(found)
            + "\nchoose other prompts, or leave the shared ones out with `evaluation.exclude`"
        )


def shared_prompts(
    config: LifecycleConfig,
    first_rows: int | None = None,
    *,
    downloads: bool = True,
    inherited: Sequence[TrainedSource] = (),
) -> list[str]:
    """Describe every source that has more held-out prompts than `leak_guard` allows.

    Args:
        config: the lifecycle; of all its blocks, so that a policy of any flow can be judged.
        first_rows: compare only so many rows of each source; None compares all.
        downloads: also read datasets of the hub, which downloads those that are not in the cache.
        inherited: what the models that it starts from were trained on.

    Raises:
        DataError: for a source that cannot be read.
    """
    watched = [
        _watch(source, config, first_rows)
        for source in _held_out_sources(config)
        if downloads or not any(map(is_on_hub, source.sources))
    ]
    found: list[tuple[Watched, bool, str]] = []
    for source in (*trained_sources(config), *inherited):
        if downloads or not source.is_on_hub:
            found += _compare(source, watched, first_rows)
    found += _chosen_by(watched)
    return list(_over_limits(config, found))


def _watch(source: HeldOutSource, config: LifecycleConfig, first_rows: int | None) -> Watched:
    rows = prompts_without(source.prompts, source.exclude)[:first_rows]
    numbers = {prompt_key(row): number for number, row in enumerate(rows, 1)}
    texts: dict[str, list[int]] = {}
    for number in numbers.values():
        texts.setdefault(text_of(rows[number - 1].prompt), []).append(number)
    similarity = config.leak_guard.similarity if source.name == JUDGED else None
    near = NearDuplicates(texts, similarity) if similarity else None
    return Watched(source, numbers, texts, near)


def _compare(
    source: TrainedSource, watched: Sequence[Watched], first_rows: int | None
) -> list[tuple[Watched, bool, str]]:
    """Read a source once, and describe what it shares with each held-out source."""
    concerned = [each for each in watched if source.name.startswith(each.source.trained)]
    try:
        asked = (
            AskedPrompt(text_of(prompt), key_of(prompt), number)
            for number, row in enumerate(stream(source.kind, source.data, first_rows), 1)
            for prompt in answered_prompts(row)
        )
        while batch := list(islice(asked, BATCH)):
            for each in concerned:
                each.look_at(batch)
    except DataError as error:
        if not source.is_inherited:
            raise DataError(f"{source.name}: {error}") from error
        log.warning("the data of %s is not compared: %s", source.name, error)
    return [
        (each, is_same, text) for each in concerned for is_same, text in each.finish(source.name)
    ]


def _chosen_by(watched: Sequence[Watched]) -> list[tuple[Watched, bool, str]]:
    """Describe the prompts of the evaluation by which weights are chosen."""
    found: list[tuple[Watched, bool, str]] = []
    judged = next((each for each in watched if each.source.name == JUDGED), None)
    for each in watched:
        if judged is not None and each.source.selects:
            judged.same = {k: row for k, row in each.numbers.items() if k in judged.numbers}
            name = f"{each.source.name} (by which the weights are chosen)"
            found += [(judged, is_same, text) for is_same, text in judged.finish(name)]
    return found


def _over_limits(
    config: LifecycleConfig, found: Sequence[tuple[Watched, bool, str]]
) -> Iterator[str]:
    """Yield what is above the limits; the rest is only logged."""
    guard = config.leak_guard
    limits: Mapping[bool, tuple[float, Callable[[Watched], set[int]]]] = {
        True: (guard.max_same_share, lambda each: each.seen_same),
        False: (guard.max_near_share, lambda each: each.seen_alike),
    }
    for each, is_same, text in found:
        limit, seen = limits[is_same]
        if len(seen(each)) > limit * len(each.numbers):
            hint = "" if is_same else " (limits: leak_guard.similarity, leak_guard.max_near_share)"
            yield text + hint
        else:
            log.warning("within the limits of leak_guard: %s", text)


def _described(
    name: str, held_out: Mapping[str, int], source: str, places: Mapping[str, int]
) -> str:
    key, row = next(iter(places.items()))
    return (
        f"{len(places)} of {len(held_out)} different prompts of {name} are also in {source}, "
        f"word for word; e.g. prompt {held_out[key]} is in row {row}: {key:.{SHOWN}}"
    )


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
