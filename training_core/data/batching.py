"""Which examples make a batch, how it is cut into micro-batches, and how those become tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from training_core.types import Batch, Example

T = TypeVar("T")

CUTS_PER_RANK = 2


def steps_in(num_examples: int, batch_size: int, epochs: float) -> int:
    """Optimizer steps that `epochs` passes over the data take; the last batch may be short."""
    return math.ceil(num_examples * epochs / batch_size)


def batch_indices(
    num_examples: int, batch_size: int, epochs: float, *, seed: int, step: int
) -> list[int]:
    """Return the examples of batch `step` (0-based).

    The order of each epoch is a permutation that depends on `seed` and the epoch only, so the
    position in the data is the step number, and a resumed run needs no data state.

    Args:
        num_examples: size of the dataset.
        batch_size: examples per optimizer step.
        epochs: passes over the data; each example is used floor(epochs) or ceil(epochs) times.
        seed: of the permutations.
        step: 0-based.
    """
    end = min((step + 1) * batch_size, math.ceil(num_examples * epochs))
    positions = range(step * batch_size, end)
    orders = {
        epoch: _order(num_examples, seed, epoch) for epoch in {p // num_examples for p in positions}
    }
    return [orders[p // num_examples][p % num_examples] for p in positions]


def _order(num_examples: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(num_examples, generator=generator).tolist()


def cut_by_tokens(
    lengths: Sequence[int], budget_tokens: int, *, world_size: int = 1
) -> list[list[int]]:
    """Cut a batch into micro-batches of at most `budget_tokens` padded tokens.

    Neighbours in length come together.

    Args:
        lengths: tokens of each item.
        budget_tokens: rows times longest row; a longer item gets a micro-batch of its own.
        world_size: ranks that will share them; with more than one, the costliest are halved until
            there are `CUTS_PER_RANK` for each, and as many for one as for another.

    Returns:
        Lists of positions in `lengths`, the longest items first (so that running out of memory
        shows at once).
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
    cuts: list[list[int]] = []
    width = 0
    for i in order:
        if cuts and (len(cuts[-1]) + 1) * width <= budget_tokens:
            cuts[-1].append(i)
        else:
            cuts.append([i])
            width = lengths[i]
    return cuts if world_size == 1 else _halved(cuts, lengths, world_size)


def _halved(cuts: list[list[int]], lengths: Sequence[int], world_size: int) -> list[list[int]]:
    while len(cuts) < CUTS_PER_RANK * world_size or len(cuts) % world_size:
        costs = [len(cut) * lengths[cut[0]] if len(cut) > 1 else 0 for cut in cuts]
        at = max(range(len(cuts)), key=lambda c: costs[c], default=0)
        if not any(costs):
            break  # one item each
        middle = len(cuts[at]) // 2
        cuts[at : at + 1] = [cuts[at][:middle], cuts[at][middle:]]
    return cuts


@dataclass(frozen=True)
class WithoutLoss(Generic[T]):
    """A micro-batch that is computed and not learnt from, so that ranks stay in step."""

    micro_batch: T


def deal_to_ranks(costs: Sequence[float], world_size: int) -> list[list[int]]:
    """Deal items to ranks so that their costs are near each other.

    The dearest item goes first, each to the rank that has the least so far.

    Args:
        costs: of each item, as its padded tokens.
        world_size: number of ranks.

    Returns:
        For each rank positions in `costs`, ascending; empty if there are fewer items than ranks.

    Source:
        Graham 1969, longest processing time first: at most 4/3 of the best possible.
    """
    hands: list[list[int]] = [[] for _ in range(world_size)]
    totals = [0.0] * world_size
    for item in sorted(range(len(costs)), key=lambda i: costs[i], reverse=True):
        rank = min(range(world_size), key=lambda r: totals[r])
        hands[rank].append(item)
        totals[rank] += costs[item]
    return [sorted(hand) for hand in hands]


def share_of_rank(
    micro_batches: Sequence[T], costs: Sequence[float], rank: int, world_size: int, *, even: bool
) -> list[T | WithoutLoss[T]]:
    """Return what one rank computes of a batch.

    Args:
        micro_batches: of the whole batch, the same on every rank.
        costs: of each.
        rank: whose share.
        world_size: number of ranks.
        even: whether every rank must have the same number; the cheapest micro-batch is then
            repeated `WithoutLoss`.
    """
    hands = deal_to_ranks(costs, world_size)
    share: list[T | WithoutLoss[T]] = [micro_batches[i] for i in hands[rank]]
    if even and micro_batches:
        cheapest = min(range(len(costs)), key=lambda i: costs[i])
        missing = max(len(hand) for hand in hands) - len(share)
        share += [WithoutLoss(micro_batches[cheapest])] * missing
    return share


def collate(examples: Sequence[Example], pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Right-pad `examples` into tensors.

    Returns:
        A batch of [B, T] with T the longest example. A loss mask on the very first token is
        dropped, since nothing predicts that token.
    """
    width = max(len(e) for e in examples)
    ids = torch.full((len(examples), width), pad_id, dtype=torch.int64)
    attention = torch.zeros((len(examples), width), dtype=torch.bool)
    loss = torch.zeros((len(examples), width), dtype=torch.bool)
    for row, example in enumerate(examples):
        size = len(example)
        ids[row, :size] = torch.tensor(example.input_ids)
        attention[row, :size] = True
        loss[row, :size] = torch.tensor(example.loss_mask, dtype=torch.bool)
    loss[:, 0] = False
    return Batch(ids.to(device), attention.to(device), loss.to(device))
