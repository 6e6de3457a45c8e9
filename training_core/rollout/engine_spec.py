"""What is needed to open a rollout engine in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training_core.models import hub
from training_core.rollout import vllm_engine
from training_core.rollout.digest import content_digest, fingerprint
from training_core.rollout.engine import RolloutEngine
from training_core.rollout.engine_messages import Bucket
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.weight_channels import Channel


class ReceivingEngine(RolloutEngine, Protocol):
    """A rollout engine whose weights come from another process."""

    @property
    def steps(self) -> int:
        """A count that grows with the work, e.g. by one with the next token of all responses."""
        ...

    def join(self, channel: Channel) -> None:
        """Receive weights through this channel from now on."""
        ...

    def receive_weights(self, buckets: Iterable[Bucket], version: int) -> str:
        """Like `load_weights`, with what the channel brings.

        Args:
            buckets: what each bucket has; the next one comes when this one was read.
            version: see `load_weights`.
        """
        ...


@dataclass(frozen=True)
class EngineSpec:
    """A rollout engine that another process shall open; it can be pickled.

    Attributes:
        kind: which engine.
        directory: Hugging Face directory of the policy, with the first weights.
        tokenizer: tokenizer of the policy.
        dtype: dtype of the transformers engine's weights.
        device: `cuda` or `cpu`, of the transformers engine.
        max_tokens: limit of prompt and response together.
        gpu_memory_fraction: share of the GPU that vLLM may take.
        tensor_parallel_size: parts into which vLLM divides the weights.
        sleeps: whether vLLM can free its memory on a GPU.
    """

    kind: Literal["vllm", "transformers"]
    directory: Path
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype
    device: str
    max_tokens: int
    gpu_memory_fraction: float
    tensor_parallel_size: int = 1
    sleeps: bool = False

    @property
    def has_children(self) -> bool:
        """Whether the engine's process starts further processes."""
        return self.tensor_parallel_size > 1

    def open(self) -> ReceivingEngine:
        """Open the engine in this process."""
        if self.kind == "transformers":
            policy = hub.freeze(hub.load_policy(self.directory, dtype=self.dtype))
            return TransformersEngine(policy.to(self.device), self.tokenizer)
        return vllm_engine.VllmEngine(
            self.directory,
            self.tokenizer,
            max_tokens=self.max_tokens,
            gpu_memory_fraction=self.gpu_memory_fraction,
            tensor_parallel_size=self.tensor_parallel_size,
            sleeps=self.sleeps,
        )

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest that the opened engine has with these weights."""
        if self.kind == "transformers":
            return fingerprint(weights)
        return content_digest((tensor for _, tensor in weights), vllm_engine.computing_dtype())
