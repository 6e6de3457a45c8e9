"""What a stage's process and the process of a rollout engine send each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training_core.errors import RatchetError
from training_core.rollout.sampling import RolloutRequest
from training_core.rollout.weight_channels import Channel
from training_core.types import Rollout


@dataclass(frozen=True)
class RequestBlock:
    """To the engine: requests that are submitted together, so that they share batches."""

    requests: tuple[RolloutRequest, ...]


@dataclass(frozen=True)
class Join:
    """To the engine: buckets come through this channel from now on."""

    channel: Channel


@dataclass(frozen=True)
class NewWeights:
    """To the engine: buckets with weights follow."""

    version: int


@dataclass(frozen=True)
class Piece:
    """A part of a tensor in the bucket.

    Attributes:
        name: name of the tensor in a checkpoint.
        shape: of the whole tensor.
        dtype: of the tensor.
        start: place of the part in the tensor, in bytes.
        offset: place of the part in the bucket, in bytes.
        size: in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    offset: int
    size: int


@dataclass(frozen=True)
class Bucket:
    """To the engine: the next bucket has these pieces; no pieces: all weights were sent."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Taken:
    """From the engine: the bucket may be filled again."""


@dataclass(frozen=True)
class Sleep:
    """To the engine: free the memory of the GPU until the next weights."""


@dataclass(frozen=True)
class Asleep:
    """From the engine: it has freed its memory."""


@dataclass(frozen=True)
class Stepped:
    """From the engine: it has done a step of its work, e.g. the next token of each response."""


@dataclass(frozen=True)
class Opened:
    """From the engine: it is ready for requests."""


@dataclass(frozen=True)
class Loaded:
    """From the engine: it has the new weights, with this digest of its own layers."""

    digest: str


@dataclass(frozen=True)
class Finished:
    """From the engine: a rollout. Its prompt has nothing but token ids."""

    id: str
    rollout: Rollout


@dataclass(frozen=True)
class Failed:
    """From the engine: an error that a restart would not mend."""

    error: RatchetError


@dataclass(frozen=True)
class Ended:
    """The engine's process has ended; `words` tells how, and has the end of what it wrote."""

    words: str


FromEngine = Taken | Asleep | Stepped | Opened | Loaded | Finished | Failed | Ended
"""What can come from an engine."""
