"""From tokenised examples to the micro-batches of each step.

A collator holds the items of a dataset, knows their lengths, and converts some of them to tensors.
Everything else (the items of a step, their division into micro-batches) is the same for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from stages.configs.training_config import TrainingConfig
from training_core.data.batching import batch_indices, collate, cut_by_tokens
from training_core.data.layout import collate_packed, collate_shared, row_length
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models.causal_lm import can_branch
from training_core.models.computing import ComputingModel
from training_core.objectives.preference import PairBatch
from training_core.types import Batch, Example, Pair

log = logging.getLogger(__name__)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SHARING_PAYS = 0.95
"""Prompts are shared if this reduces the number of tokens to less than this fraction."""
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference of a score, or of a sum over a short sequence, that counts as rounding."""
ROUNDING_HALF = 0.5
SHORT_TOKENS = 100
"""Beyond so many trained tokens the rounding of a sum grows with their number."""


class Collator(Protocol[T_co]):
    """Items of a dataset that can be converted to tensors."""

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of tokens in each item's rows."""
        ...

    def __call__(self, indices: Sequence[int]) -> T_co:
        """Put some items into one micro-batch."""
        ...


def micro_batches(
    collator: Collator[T],
    training: TrainingConfig,
    *,
    seed: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Callable[[int], list[T]]:
    """Build step -> micro-batches; the items of a step depend only on step and seed."""
    lengths = collator.lengths

    def batch_of(step: int) -> list[T]:
        chosen = batch_indices(
            len(lengths), training.batch_size, training.epochs, seed=seed, step=step
        )
        return [batch for _, batch in cut(collator, chosen, training.micro_batch_tokens, dist_info)]

    return batch_of


def cut(
    collator: Collator[T],
    indices: Sequence[int],
    budget_tokens: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Iterator[tuple[list[int], T]]:
    """Yield the items `indices` as (indices, micro-batch), each within the budget."""
    lengths = [collator.lengths[i] for i in indices]
    for positions in cut_by_tokens(lengths, budget_tokens, world_size=dist_info.world_size):
        members = [indices[p] for p in positions]
        yield members, collator(members)


def rows_of(
    examples: Sequence[Example], pad_id: int, device: torch.device, *, packs: bool
) -> Batch:
    """Put each sequence into its own row, or all into one row (see `packs_rows`)."""
    if packs:
        return collate_packed([examples], pad_id, device)
    return collate(examples, pad_id, device)


@dataclass(frozen=True)
class Examples:
    """Collator of sequences.

    Attributes:
        examples: the items.
        pad_id: token id for padding.
        device: device of the batches.
        packs: whether a micro-batch is one row.
    """

    examples: Sequence[Example]
    pad_id: int
    device: torch.device
    packs: bool = False

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of tokens of each sequence."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int]:
        return [len(example) for example in self.examples]

    def __call__(self, indices: Sequence[int]) -> Batch:
        """Put some sequences into tensors."""
        some = [self.examples[i] for i in indices]
        return rows_of(some, self.pad_id, self.device, packs=self.packs)


@dataclass(frozen=True)
class Pairs:
    """Collator of pairs: each in two rows, or in one row with a shared prompt.

    Attributes:
        pairs: the items.
        pad_id: token id for padding.
        device: device of the batches.
        shares_prompts: whether pairs share their prompt; see `sharing_pays`.
        packs: whether a micro-batch is one row.
        ref_logprobs: [number of pairs, 2] under the reference: chosen, rejected.
    """

    pairs: Sequence[Pair]
    pad_id: int
    device: torch.device
    shares_prompts: bool = False
    packs: bool = False
    ref_logprobs: Tensor | None = None

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of tokens of each pair."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int]:
        if self.shares_prompts:
            return [row_length((pair.chosen, pair.rejected)) for pair in self.pairs]
        return [2 * max(len(pair.chosen), len(pair.rejected)) for pair in self.pairs]

    def __call__(self, indices: Sequence[int]) -> PairBatch:
        """Put some pairs into tensors; the chosen sides come first."""
        some = [self.pairs[i] for i in indices]
        if self.shares_prompts:
            groups = [(pair.chosen, pair.rejected) for pair in some]
            batch = collate_shared(groups, self.pad_id, self.device)
        else:
            sides = [pair.chosen for pair in some] + [pair.rejected for pair in some]
            batch = rows_of(sides, self.pad_id, self.device, packs=self.packs)
        reference = None
        if self.ref_logprobs is not None:
            rows = self.ref_logprobs[list(indices)]
            reference = rows.T.reshape(-1).to(self.device, torch.float32)
        margins = torch.tensor([pair.margin for pair in some], device=self.device)
        return PairBatch(batch, reference, margins)


def sharing_pays(
    model: ComputingModel,
    pairs: Sequence[Pair],
    pad_id: int,
    measure: Callable[[nn.Module, Batch], Tensor],
    *,
    is_sum: bool,
) -> bool:
    """Return whether to compute the prompt of each pair only once; the log has the result.

    It must save tokens, and the model must support two separate branches. With and without sharing,
    a pair of average length and the longest pair must give the same numbers.

    Args:
        model: the model that gets the batches; every rank must call this.
        pairs: all pairs of the dataset.
        pad_id: token id for padding.
        measure: (model, batch) -> [S], one number per sequence.
        is_sum: whether the number is a sum over the trained tokens; see `rounding`.
    """
    if not pairs or not can_branch(model.model):
        return False
    groups = [(pair.chosen, pair.rejected) for pair in pairs]
    shared = sum(row_length(group) for group in groups)
    apart = sum(len(example) for group in groups for example in group)
    if shared > SHARING_PAYS * apart:
        return False
    middling = min(groups, key=lambda g: abs(row_length(g) - shared / len(groups)))
    some = (middling, max(groups, key=row_length))
    with model.at_work():
        gaps = [_sharing_gap(model, group, pad_id, measure) for group in some]
    limits = [rounding(model.model.dtype, group if is_sum else ()) for group in some]
    is_exact = all(gap <= limit for gap, limit in zip(gaps, limits, strict=True))
    if is_exact:
        left = 100 * shared / apart
        log.info("prompts are computed once per pair: this leaves %.0f %% of the tokens", left)
    else:
        log.warning(
            "prompts are computed twice per pair: sharing them would change results by %.3g "
            "(rounding: %.3g)",
            max(gaps),
            max(limits),
        )
    return is_exact


def rounding(dtype: torch.dtype, sequences: Sequence[Example] = ()) -> float:
    """Return the largest difference that counts as rounding.

    Args:
        dtype: of the computation.
        sequences: if the number is a sum over their trained tokens; the longest one counts.
    """
    tokens = max((sum(example.loss_mask) for example in sequences), default=0)
    return ROUNDING.get(dtype, ROUNDING_HALF) * max(1.0, tokens / SHORT_TOKENS)


def _sharing_gap(
    model: ComputingModel,
    group: Sequence[Example],
    pad_id: int,
    measure: Callable[[nn.Module, Batch], Tensor],
) -> float:
    apart = model.compute(measure, collate(group, pad_id, model.device))
    shared = model.compute(measure, collate_shared([group], pad_id, model.device))
    return float((apart - shared).abs().max())
