"""The share that a rank computes of the micro-batches of an optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from training_core.data.batching import WithoutLoss, share_of_rank
from training_core.dist_info import DistInfo
from training_core.engine.protocol import TrainEngine
from training_core.types import MicroBatch

M = TypeVar("M", bound=MicroBatch)


def own_share(
    micro_batches: Sequence[M], engine: TrainEngine, dist_info: DistInfo
) -> Sequence[M | WithoutLoss[M]]:
    """Return the micro-batches of this rank, of those of the whole step."""
    if dist_info.is_single_process:
        return micro_batches
    return share_of_rank(
        micro_batches,
        [m.batch.padded_tokens for m in micro_batches],
        dist_info.data_rank,
        dist_info.data_world_size,
        even=engine.needs_even_ranks,
    )
