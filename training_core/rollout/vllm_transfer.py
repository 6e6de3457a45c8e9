"""Buckets of weights as a backend of vLLM's weight transfer, in each of vLLM's workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.distributed.weight_transfer.base import (
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from training_core.rollout.engine_messages import Piece
from training_core.rollout.weight_buckets import BucketReader
from training_core.rollout.weight_channels import Channel


@dataclass
class BucketInit(WeightTransferInitInfo):
    """Where the buckets come from."""

    channel: Channel


@dataclass
class BucketUpdate(WeightTransferUpdateInfo):
    """What the next bucket has."""

    pieces: Sequence[Piece]


class BucketTransfer(WeightTransferEngine[BucketInit, BucketUpdate]):
    """Receives weights in the form of a checkpoint, one bucket after the other.

    `initialize_layerwise_reload` comes before the first one, because the CPU build repacks linear
    layers after loading, and only a reload starts with layers that are not packed.
    """

    init_info_cls = BucketInit
    update_info_cls = BucketUpdate
    _reader: BucketReader

    def init_transfer_engine(self, init_info: BucketInit) -> None:
        """Open this worker's end of the channel."""
        channel = init_info.channel.of_part(self.parallel_config.rank)
        self._reader = BucketReader(channel, self.device)

    def start_weight_update(self) -> None:
        """Let the layers wait for new weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take the next bucket; vLLM's own method would wait for a GPU, also without one."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def receive_weights(self, update_info: BucketUpdate) -> None:
        """Load the tensors that this bucket completes."""
        model: Any = self.model  # every vLLM model has this method
        model.load_weights(self._reader.read(update_info.pieces))

    def finish_weight_update(self) -> None:
        """Let the layers use the new weights."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the channel."""
        vars(self).pop("_reader", None)
