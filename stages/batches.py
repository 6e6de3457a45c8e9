"""From tokenised examples to the micro-batches of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stages.settings.training import Training
from training_core.data.batching import batch_indices, collate, cut_by_tokens
from training_core.models.causal_lm import logprobs
from training_core.objectives.preference import PairBatch
from training_core.types import Batch, Example, Pair


def example_batches(
    examples: Sequence[Example], training: Training, *, seed: int, pad_id: int, device: torch.device
) -> Callable[[int], list[Batch]]:
    """Build step -> micro-batches over `examples`."""

    def batch_of(step: int) -> list[Batch]:
        chosen = [
            examples[i]
            for i in batch_indices(
                len(examples), training.batch_size, training.epochs, seed=seed, step=step
            )
        ]
        cuts = cut_by_tokens([len(e) for e in chosen], training.micro_batch_tokens)
        return [collate([chosen[i] for i in cut], pad_id, device) for cut in cuts]

    return batch_of


def pair_batches(
    pairs: Sequence[Pair],
    training: Training,
    *,
    seed: int,
    pad_id: int,
    device: torch.device,
    ref_logprobs: torch.Tensor | None = None,
) -> Callable[[int], list[PairBatch]]:
    """Build step -> micro-batches over `pairs`.

    `ref_logprobs` is [number of pairs, 2]: chosen, rejected.
    """

    def batch_of(step: int) -> list[PairBatch]:
        indices = batch_indices(
            len(pairs), training.batch_size, training.epochs, seed=seed, step=step
        )
        return cut_pairs(pairs, indices, training.micro_batch_tokens, pad_id, device, ref_logprobs)

    return batch_of


def cut_pairs(  # noqa: PLR0917 - private to this module and its two callers
    pairs: Sequence[Pair],
    indices: Sequence[int],
    budget_tokens: int,
    pad_id: int,
    device: torch.device,
    ref_logprobs: torch.Tensor | None = None,
) -> list[PairBatch]:
    """Cut the pairs `indices` into micro-batches; both sides of a pair stay together."""
    longest = [max(len(pairs[i].chosen), len(pairs[i].rejected)) for i in indices]
    batches = []
    for cut in cut_by_tokens(longest, budget_tokens // 2):
        rows = [indices[j] for j in cut]
        examples = [pairs[i].chosen for i in rows] + [pairs[i].rejected for i in rows]
        reference = None if ref_logprobs is None else ref_logprobs[rows].T.reshape(-1).to(device)
        batches.append(PairBatch(collate(examples, pad_id, device), reference))
    return batches


@torch.no_grad()
def reference_logprobs(
    model: Any, pairs: Sequence[Pair], *, budget_tokens: int, pad_id: int
) -> torch.Tensor:
    """Summed log-probabilities of both sides of each pair, computed once.

    Returns:
        [number of pairs, 2] float32 on the CPU: chosen, rejected.
    """
    flat = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    sums = torch.zeros(len(flat))
    for cut in cut_by_tokens([len(e) for e in flat], budget_tokens):
        batch = collate([flat[i] for i in cut], pad_id, model.device)
        sums[cut] = logprobs(model, batch).sum(dim=1).float().cpu()
    return sums.reshape(-1, 2)
