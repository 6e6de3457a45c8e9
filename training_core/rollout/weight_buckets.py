"""Weights on their way to rollout engines: through one bucket of memory after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from training_core.rollout.engine_messages import Bucket, Piece
from training_core.rollout.weight_channels import Channel

BUCKET_BYTES = 64 * 2**20
"""Size of the memory. Larger tensors are sent in several pieces."""


def fill_buckets(weights: Iterable[tuple[str, Tensor]], memory: Tensor) -> Iterator[Bucket]:
    """Copy `weights` into `memory`, and yield what it has whenever it is full, and at the end.

    The caller goes on when all readers have taken the bucket.
    """
    pieces: list[Piece] = []
    used = 0
    for name, tensor in weights:
        data = _bytes_of(tensor.detach().contiguous())
        start = 0
        while start < len(data) or not len(data):
            size = min(len(data) - start, len(memory) - used)
            memory[used : used + size].copy_(data[start : start + size])
            shape = tuple(tensor.shape)
            pieces.append(Piece(name, shape, tensor.dtype, start, used, size))
            start, used = start + size, used + size
            if used == len(memory):
                yield Bucket(tuple(pieces))
                pieces, used = [], 0
            if not len(data):
                break
    if pieces:
        yield Bucket(tuple(pieces))


class BucketReader:
    """Puts the tensors together that `fill_buckets` sends from another process.

    Args:
        channel: where the buckets come from.
        device: for the tensors; with a broadcast the bucket is there, too.
    """

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self._end = channel.open(device)
        self._device = device
        self._whole = torch.empty(0)

    def read(self, pieces: Sequence[Piece]) -> list[tuple[str, Tensor]]:
        """Take the next bucket, and return the tensors that it completes.

        Args:
            pieces: what the bucket has.
        """
        memory = self._end.take(pieces[-1].offset + pieces[-1].size)
        complete: list[tuple[str, Tensor]] = []
        for piece in pieces:
            if piece.start == 0:
                self._whole = torch.empty(piece.shape, dtype=piece.dtype, device=self._device)
            data, end = _bytes_of(self._whole), piece.start + piece.size
            data[piece.start : end].copy_(memory[piece.offset : piece.offset + piece.size])
            if end == len(data):
                complete.append((piece.name, self._whole))
        return complete


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
