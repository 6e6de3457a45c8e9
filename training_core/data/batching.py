"""Which examples make a batch, how it is cut into micro-batches, and how those become tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from training_core.types import Batch, Example


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


def cut_by_tokens(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Cut a batch into micro-batches of at most `budget_tokens` padded tokens.

    Neighbours in length come together.

    Args:
        lengths: tokens of each item.
        budget_tokens: rows times longest row; a longer item gets a micro-batch of its own.

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
    return cuts


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
