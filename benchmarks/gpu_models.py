"""Models, engines and times of the benchmark `gpu`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from training_core.engine.master_weights import MasterWeights
from training_core.engine.optimizers import adamw
from training_core.engine.torch_engine import TorchEngine

SHAPES = {  # hidden, layers, heads, key-value heads, intermediate, vocabulary
    "tiny": (64, 2, 4, 2, 128, 512),
    "0.5B": (896, 24, 14, 2, 4864, 151936),
    "1.5B": (1536, 28, 12, 2, 8960, 151936),
}
PRECISIONS = ("bf16", "bf16-only", "autocast", "fp32")
UNTIMED = 2
"""Steps before those that are timed."""


@dataclass(frozen=True)
class Case:
    """What a row of the table measures; the fields are the arguments of the command line."""

    method: str
    shape: str
    precision: str
    device: torch.device
    attention: str
    batch_size: int
    group_size: int
    max_tokens: int
    micro_batch_tokens: int
    steps: int

    @property
    def packs(self) -> bool:
        """Whether a micro-batch is one row, for flash kernels."""
        return self.attention.startswith("flash")


@dataclass(frozen=True)
class Measured:
    """The timed steps of a case.

    Attributes:
        parameters: of the policy.
        tokens: in all steps.
        flops: model FLOPs of all steps.
        seconds: of each step.
    """

    parameters: int
    tokens: int
    flops: float
    seconds: Sequence[float]


def make_model(case: Case, *, is_scalar: bool = False) -> Any:
    """Make a model of the case's shape with random weights, or one with a single output."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary = SHAPES[case.shape]
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        pad_token_id=0,
    )
    config.num_labels = 1
    config._attn_implementation = case.attention
    torch.manual_seed(0)
    dtype = torch.bfloat16 if case.precision.startswith("bf16") else torch.float32
    kind: Any = Qwen2ForSequenceClassification if is_scalar else Qwen2ForCausalLM
    with torch.device(case.device):
        model = kind(config).to(dtype)
    if is_scalar:
        torch.nn.init.zeros_(model.score.weight)
    return model.train()


def make_engine(model: Any, case: Case) -> TorchEngine:
    """Build the engine of the case's precision."""
    kind = EngineWithoutMasters if case.precision == "bf16-only" else TorchEngine
    return kind(model, learning_rate=1e-6, schedule=lambda _: 1.0)


class NoMasters(MasterWeights):
    """The weights themselves."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._copies = {}
        self.updated = list(parameters)


class EngineWithoutMasters(TorchEngine):
    """AdamW directly on bfloat16 weights: for comparison, since it loses small updates."""

    def __init__(self, model: Any, *, learning_rate: float, **options: Any) -> None:
        super().__init__(model, learning_rate=learning_rate, **options)
        self._masters = NoMasters(list(model.parameters()))
        self._optimizers = adamw(model, learning_rate=learning_rate)


def in_precision(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """Let `function` compute in the case's precision."""

    def inside(*arguments: Any, **options: Any) -> Any:
        is_mixed = case.precision == "autocast"
        with torch.autocast(case.device.type, torch.bfloat16) if is_mixed else nullcontext():
            return function(*arguments, **options)

    return inside


def seconds_of(case: Case, step: Callable[[int], object], timed: int) -> list[float]:
    """Do `UNTIMED` steps and then `timed` further ones, and return the seconds of the latter."""
    found: list[float] = []
    for number in range(UNTIMED + timed):
        _wait(case.device)
        began = time.perf_counter()
        step(number)
        _wait(case.device)
        found.append(time.perf_counter() - began)
    return found[UNTIMED:]


def size_of(model: Any) -> int:
    """Count the parameters; shared ones once."""
    return sum(p.numel() for p in model.parameters())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
