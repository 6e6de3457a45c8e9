"""Choose the examples of a batch, split it into micro-batches, and convert these to tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import torch

from training_core.types import Batch, Example

T = TypeVar("T")

CUTS_PER_RANK = 2


def steps_in(num_examples: int, batch_size: int, epochs: float) -> int:
    """Number of optimizer steps for `epochs` passes over the data; the last batch may be short."""
    return math.ceil(num_examples * epochs / batch_size)


def batch_indices(
    num_examples: int, batch_size: int, epochs: float, *, seed: int, step: int
) -> list[int]:
    """Return the indices of the examples of batch `step` (0-based).

    The order of each epoch is a permutation that depends only on `seed` and the epoch. So the step
    number is the position in the data, and a resumed run needs no data state.

    Args:
        num_examples: size of the dataset.
        batch_size: examples per optimizer step.
        epochs: passes over the data; each example is used floor(epochs) or ceil(epochs) times.
        seed: seed of the permutations.
        step: number of the batch, 0-based.
    """
    end = min((step + 1) * batch_size, math.ceil(num_examples * epochs))
    return indices_between(num_examples, range(step * batch_size, end), seed=seed)


def indices_between(num_examples: int, positions: range, *, seed: int) -> list[int]:
    """Return the indices of the examples at some positions of an endless sequence of epochs.

    Args:
        num_examples: size of the dataset.
        positions: 0-based; position p is in epoch p // num_examples.
        seed: seed of the permutations; they are those of `batch_indices`.
    """
    orders = {
        epoch: _order(num_examples, seed, epoch) for epoch in {p // num_examples for p in positions}
    }
    return [orders[p // num_examples][p % num_examples] for p in positions]


def even_batches(num_examples: int, num_batches: int, epochs: int, *, seed: int) -> list[list[int]]:
    """Divide every pass over the data into batches whose sizes differ by at most one.

    Args:
        num_examples: size of the dataset.
        num_batches: batches per pass; fewer if there are fewer examples.
        epochs: passes over the data, each in its own order.
        seed: seed of the orders; they are those of `batch_indices`.

    Returns:
        The indices of each batch.
    """
    parts = min(num_batches, num_examples)
    borders = [num_examples * part // parts for part in range(parts + 1)]
    orders = [_order(num_examples, seed, epoch) for epoch in range(epochs)]
    return [order[a:b] for order in orders for a, b in pairwise(borders)]


def _order(num_examples: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(num_examples, generator=generator).tolist()


def cut_by_tokens(
    lengths: Sequence[int], budget_tokens: int, *, world_size: int = 1
) -> list[list[int]]:
    """Split a batch into micro-batches of at most `budget_tokens` padded tokens.

    Each micro-batch contains items of similar length.

    Args:
        lengths: number of tokens of each item.
        budget_tokens: limit of rows times longest row; a longer item is a micro-batch by itself.
        world_size: number of ranks that share the micro-batches. With more than one rank, the most
            expensive ones are halved until every rank can have the same number of them, and at
            least `CUTS_PER_RANK`.

    Returns:
        Lists of positions in `lengths`, the longest items first, so that an out-of-memory error
        occurs in the first micro-batch.
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
    """An extra micro-batch, so that all ranks compute the same number; its loss does not count."""

    micro_batch: T


def deal_to_ranks(costs: Sequence[float], world_size: int) -> list[list[int]]:
    """Distribute items to ranks with similar total costs.

    The most expensive item comes first; each item goes to the rank with the smallest total so far.

    Args:
        costs: cost of each item, e.g. its padded tokens.
        world_size: number of ranks.

    Returns:
        For each rank its positions in `costs`, ascending; some are empty if there are fewer items
        than ranks.

    Source:
        Graham 1969, longest processing time first: at most 4/3 of the optimum.
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
    """Return the micro-batches that one rank computes.

    Args:
        micro_batches: of the whole batch, the same on every rank.
        costs: cost of each micro-batch.
        rank: the rank.
        world_size: number of ranks.
        even: whether every rank must have the same number; missing ones are filled with the
            cheapest micro-batch, marked `WithoutLoss`.
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
        A batch of [B, T] with T the longest example. The loss mask of the first token is cleared,
        because no token predicts it.
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
