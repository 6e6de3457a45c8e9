"""How a model is held on the GPUs of a stage, and how many of its weights are trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from training_core.models.options import LoadOptions, LoraOptions
from training_core.sizes.decoder import MATRIX, Decoder, HeadKind, Weight

OptimizerName = Literal["adamw", "muon"]

FLOAT = 4
"""Bytes of a number in single precision."""
FOUR_BITS = 0.5 + 0.127 / 8
"""Bytes of a 4-bit weight: 0.5, and 0.127 bits for its scales (Dettmers et al. 2023, section 3)."""
CUT_BY_TENSOR_PARALLELISM = ("*.q_proj.weight", "*.k_proj.weight", "*.v_proj.weight",
                             "*.o_proj.weight", "*.gate_proj.weight", "*.up_proj.weight",
                             "*.down_proj.weight")  # fmt: skip
LINEAR = (*CUT_BY_TENSOR_PARALLELISM, "*.mlp.gate.weight", "*.experts.*_proj")


@dataclass(frozen=True)
class Sharding:
    """How the state of a training is divided over workers with one GPU each.

    Attributes:
        workers: number of workers.
        zero_stage: of DeepSpeed; None: plain torch, i.e. each worker holds everything.
        tensor_parallel_size: workers that share the matrices of each layer.
        offload_optimizer: whether masters, moments and gradients are in CPU memory.
        offload_parameters: whether the weights are there, too.
    """

    workers: int = 1
    zero_stage: int | None = None
    tensor_parallel_size: int = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False

    @property
    def data_parallel(self) -> int:
        """Number of groups of workers with different data; ZeRO divides its state by it."""
        return self.workers // self.tensor_parallel_size


@dataclass(frozen=True)
class ModelUse:
    """A model in a stage.

    Attributes:
        decoder: its shapes.
        head: one logit per word, or one number.
        options: dtype, adapter, frozen parts, gradient checkpointing.
        optimizer: None: it is not trained.
        sharding: how its state is divided.
        is_on_gpu: whether it is on a GPU. Chunks of the loss and the optimizer differ.
        has_average: whether an average of the trained weights is kept.
    """

    decoder: Decoder
    head: HeadKind = "lm_head"
    options: LoadOptions = field(default_factory=LoadOptions)
    optimizer: OptimizerName | None = "adamw"
    sharding: Sharding = field(default_factory=Sharding)
    is_on_gpu: bool = True
    has_average: bool = False

    @property
    def dtype_bytes(self) -> int:
        """Bytes of a weight, and of most activations."""
        return FLOAT if self.options.dtype == "float32" else FLOAT // 2

    @property
    def trained_bytes(self) -> int:
        """Bytes of a trained weight; an adapter is always in single precision."""
        return FLOAT if self.options.lora else self.dtype_bytes

    @property
    def has_masters(self) -> bool:
        """Whether trained weights have copies in single precision; see `MasterWeights`."""
        return self.trained_bytes < FLOAT

    def is_trained(self, weight: Weight) -> bool:
        """Whether a weight of the decoder itself is trained, as `preparing.prepare` decides it."""
        if self.optimizer is None:
            return False
        if self.options.lora is not None:
            return weight.name.startswith("score.")
        return not any(fnmatchcase(weight.name, pattern) for pattern in self.options.frozen)


@dataclass(frozen=True)
class Elements:
    """Numbers of elements on one worker before ZeRO divides them; tensor parallelism has.

    Attributes:
        weight_bytes: bytes of all weights, trained or not, adapters included.
        trained: trained elements.
        matrices: those of them that Muon updates.
        largest: elements of the largest trained weight.
    """

    weight_bytes: float
    trained: int
    matrices: int
    largest: int


def elements_of(use: ModelUse) -> Elements:
    """Count the weights of a model; see `Elements`."""
    lora = use.options.lora
    weight_bytes, trained, matrices, largest = 0.0, 0, 0, 0
    for weight in use.decoder.weights(use.head):
        size = weight.size // _parts(use, weight)
        is_packed = lora is not None and lora.load_in_4bit and _is_linear(weight)
        weight_bytes += size * (FOUR_BITS if is_packed else use.dtype_bytes)
        if use.is_trained(weight):
            trained, largest = trained + size, max(largest, size)
            matrices += size if weight.layer and len(weight.shape) == MATRIX else 0
    for size in _adapters(use):
        weight_bytes += size * FLOAT
        trained, largest = trained + size, max(largest, size)
        matrices += size
    return Elements(weight_bytes, trained, matrices, largest)


def adapted(weight: Weight, lora: LoraOptions) -> bool:
    """Whether a weight of a layer has an adapter."""
    if lora.target_modules == "all-linear":
        return any(fnmatchcase(weight.name, pattern) for pattern in LINEAR)
    return any(f".{target}." in f"{weight.name}." for target in lora.target_modules)


def _adapters(use: ModelUse) -> Iterator[int]:
    """Yield the sizes of all matrices of the adapter: rank * inputs and rank * outputs."""
    lora = use.options.lora
    if lora is None or use.optimizer is None:
        return
    for weight in use.decoder.of_a_layer:
        if len(weight.shape) >= MATRIX and adapted(weight, lora):
            experts = weight.size // (weight.shape[-1] * weight.shape[-2])
            for width in weight.shape[-2:]:
                yield from [lora.rank * width * experts] * use.decoder.layers


def _is_linear(weight: Weight) -> bool:
    """Whether bitsandbytes packs a weight: those of `nn.Linear` in the layers."""
    return any(fnmatchcase(weight.name, pattern) for pattern in CUT_BY_TENSOR_PARALLELISM)


def _parts(use: ModelUse, weight: Weight) -> int:
    return use.sharding.tensor_parallel_size if _is_linear(weight) else 1
