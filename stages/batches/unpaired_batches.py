"""Rated responses as micro-batches, each with the baseline of its step.

The baseline needs prompts with responses to other prompts (partners). Each prompt keeps one partner
for the whole stage, so that the reference computes its log-probability only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Examples, cut
from stages.configs.training_config import TrainingConfig
from training_core.data.batching import batch_indices, collate
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models.causal_lm import sequence_logprobs
from training_core.models.computing import Computing
from training_core.objectives.unpaired import UnpairedBatch
from training_core.types import Batch, Example, UnpairedExample

PARTNERS_TRIED = 64


@dataclass(frozen=True)
class Grouped:
    """Collator of groups of sequences; each sequence has its own row."""

    groups: Sequence[tuple[Example, ...]]
    pad_id: int
    device: torch.device

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of padded tokens of each group."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int]:
        return [len(group) * max(len(e) for e in group) for group in self.groups]

    def __call__(self, indices: Sequence[int]) -> Batch:
        """Pad some groups: all first members, then all second ones."""
        members = zip(*(self.groups[i] for i in indices), strict=True)
        flat = [example for member in members for example in member]
        return collate(flat, self.pad_id, self.device)


@dataclass(frozen=True)
class UnpairedExamples:
    """Collator of rated responses.

    Attributes:
        rows: the items.
        pad_id: token id for padding.
        device: device of the batches.
        mismatched: each row's prompt with another row's response; see `mismatch`.
        ref_logprobs: [number of rows, 2] under the reference: of the response and of the partner.
    """

    rows: Sequence[UnpairedExample]
    pad_id: int
    device: torch.device
    mismatched: Sequence[Example]
    ref_logprobs: Tensor | None = None

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of tokens of each row."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int]:
        return [len(row.example) for row in self.rows]

    @property
    def references(self) -> Tensor:
        """Return the reference's log-probabilities [number of rows, 2].

        Raises:
            ValueError: if they were not computed.
        """
        if self.ref_logprobs is None:
            raise ValueError("the reference's log-probabilities are not known yet")
        return self.ref_logprobs

    def with_mismatched(self) -> Grouped:
        """Return groups of every response and its partner."""
        own = [row.example for row in self.rows]
        return Grouped(list(zip(own, self.mismatched, strict=True)), self.pad_id, self.device)

    def __call__(self, indices: Sequence[int]) -> UnpairedBatch:
        """Put some rows into tensors, with a baseline of 0."""
        some = [self.rows[i] for i in indices]
        return UnpairedBatch(
            collate([row.example for row in some], self.pad_id, self.device),
            torch.tensor([row.is_desirable for row in some], device=self.device),
            self.references[list(indices), 0].to(self.device, torch.float32),
            torch.zeros((), device=self.device),
        )


def mismatch(examples: Sequence[Example], *, seed: int, max_tokens: int) -> list[Example]:
    """Pair each prompt with the response of another example, chosen once at random.

    Args:
        examples: each has a prompt and a response.
        seed: seed of the choice.
        max_tokens: limit of a prompt and its partner response, which is cut; a part of it is
            enough for the baseline.

    Returns:
        One sequence per example, with the response in its loss mask. If nearly all prompts are the
        same, some partners come from the same prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator).tolist()
    split = [_split(examples[i]) for i in order]
    mixed = list(examples)
    for place, (prompt, _) in enumerate(split):
        nearby = [(place + step) % len(split) for step in range(1, PARTNERS_TRIED)]
        partner = next((k for k in nearby if split[k][0] != prompt), nearby[0])
        response = split[partner][1][: max_tokens - len(prompt)]
        mask = (0,) * len(prompt) + (1,) * len(response)
        mixed[order[place]] = Example(prompt + response, mask)
    return mixed


def _split(example: Example) -> tuple[tuple[int, ...], tuple[int, ...]]:
    prompt = example.prompt_ids
    return prompt, example.input_ids[len(prompt) :]


def unpaired_batches(
    policy: Computing,
    rated: UnpairedExamples,
    training: TrainingConfig,
    baseline: Callable[[Tensor], Tensor],
    *,
    seed: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Callable[[int], list[UnpairedBatch]]:
    """Build step -> micro-batches whose baseline was measured on the whole batch.

    Args:
        policy: measured with its weights at the start of the step.
        rated: the rows.
        training: contains the batch size.
        baseline: (log-ratios of mismatched pairs [batch]) -> scalar.
        seed: seed of the order.
        dist_info: this process; the processes share the measuring, and all get the same baseline.
    """
    budget = training.micro_batch_tokens

    def batch_of(step: int) -> list[UnpairedBatch]:
        chosen = batch_indices(
            len(rated.rows), training.batch_size, training.epochs, seed=seed, step=step
        )
        partners = [rated.mismatched[i] for i in chosen]
        sums = over_all(
            policy,
            Examples(partners, rated.pad_id, rated.device),
            sequence_logprobs,
            budget_tokens=budget,
            columns=1,
            dist_info=dist_info,
        )[:, 0]
        level = baseline(sums - rated.references[chosen, 1]).float().to(rated.device)
        parts = cut(rated, chosen, budget, dist_info)
        return [replace(batch, baseline=level) for _, batch in parts]

    return batch_of
