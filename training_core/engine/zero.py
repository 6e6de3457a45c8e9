"""Settings of ZeRO and AutoTP, their form for DeepSpeed, and checks of what can be divided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training_core.engine.protocol import StateDict
from training_core.errors import ConfigError

PARTITIONED = 3
"""The lowest ZeRO stage that divides parameters."""
CUTS = (
    {"patterns": [r".*\.(o_proj|down_proj)\.weight$"], "partition_type": "row"},
    {
        "patterns": [r".*\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.weight$"],
        "partition_type": "column",
    },
)
"""Weights that AutoTP cuts. Embeddings and heads stay whole: the chunked loss reads them."""


@dataclass(frozen=True)
class Zero:
    """Settings: state that is divided among the ranks, and state that is kept in host memory.

    Attributes:
        zero_stage: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
        offload_optimizer: keep the optimizer state in host memory.
        offload_parameters: keep the parameters in host memory.
        tensor_parallel_size: number of neighbouring ranks that share each layer's matrices; needs
            stage 1 or 2.
    """

    zero_stage: int = 2
    offload_optimizer: bool = False
    offload_parameters: bool = False
    tensor_parallel_size: int = 1


def deepspeed_config(zero: Zero, max_grad_norm: float) -> dict[str, Any]:
    """Return the argument `config` of `deepspeed.initialize`."""
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    stage: dict[str, Any] = {"stage": zero.zero_stage, "overlap_comm": False}
    if zero.offload_optimizer:
        stage["offload_optimizer"] = host
    if zero.offload_parameters:
        stage["offload_param"] = host
    tensor_parallel = {
        "autotp_size": zero.tensor_parallel_size,
        "partition_config": {"use_default_specs": False, "layer_specs": list(CUTS)},
    }
    return {
        **({"tensor_parallel": tensor_parallel} if zero.tensor_parallel_size > 1 else {}),
        "train_micro_batch_size_per_gpu": 1,  # required, but Ratchet makes the batches
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": max_grad_norm if zero.zero_stage else 0.0,
        "zero_optimization": stage,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }


def cut_dimension(parameter: Tensor, shape: torch.Size) -> int | None:
    """Return the dimension along which a weight of `shape` was cut; None if it is whole."""
    cut = [d for d, size in enumerate(shape) if parameter.shape[d] != size]
    return cut[0] if cut else None


@contextmanager
def groups_and_steps_kept(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Correct two errors of DeepSpeed 0.19 when it loads a universal checkpoint under ZeRO 3.

    It gives every parameter group the settings of the first, so that norms would decay. It also
    gives all of them the same tensor as step count, which each group then increments.
    """
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    yield
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].clone()


def require_one_dtype(model: nn.Module, zero: Zero) -> None:
    """Refuse several dtypes under ZeRO 3, which puts all parameters into one buffer.

    Raises:
        ConfigError: if there are several; the message contains the dtypes.
    """
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.requires_grad}
    if zero.zero_stage == PARTITIONED and len(dtypes) > 1:
        raise ConfigError(
            "zero_stage 3 needs trained weights of one dtype, found "
            f"{' and '.join(sorted(dtypes))}; use zero_stage 2, model.dtype float32, or an adapter"
        )


def require_even_heads(model: nn.Module, parts: int) -> None:
    """Refuse a cut through an attention head.

    Raises:
        ConfigError: if heads are not divided evenly; the message contains their number.
    """
    if parts == 1:
        return
    config: Any = model.config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config.get_text_config(), name, None)
        if heads and heads % parts:
            raise ConfigError(
                f"tensor_parallel_size {parts} does not divide the model's {name} {heads} evenly; "
                "choose one that divides heads, key-value heads and widths"
            )


def require_even_parts(model: nn.Module, shapes: list[torch.Size], parts: int) -> None:
    """Refuse a model that AutoTP could not cut, or not into equal parts.

    Raises:
        ConfigError: if no weight is cut, or if one is cut unevenly; the message names that one.
    """
    cuts = 0
    for (name, parameter), shape in zip(model.named_parameters(), shapes, strict=True):
        dimension = cut_dimension(parameter, shape)
        if dimension is None:
            continue
        cuts += 1
        if parameter.shape[dimension] * parts != shape[dimension]:
            raise ConfigError(
                f"tensor_parallel_size {parts} does not divide {name} of shape {tuple(shape)} "
                "evenly; choose one that divides heads, key-value heads and widths"
            )
    if not cuts:
        raise ConfigError(
            f"tensor_parallel_size is {parts}, and no layer of this model has a known name "
            "(q_proj, o_proj, gate_proj, …); set it to 1"
        )


def require_same_parts(state: StateDict, zero: Zero) -> None:
    """Refuse a checkpoint whose shards were divided in another way.

    Raises:
        ConfigError: if a setting differs; the message names it.
    """
    for name in ("zero_stage", "tensor_parallel_size"):
        if state[name] != getattr(zero, name):
            raise ConfigError(
                f"the checkpoint was made with {name} {state[name]}, and "
                f"training.engine.{name} is {getattr(zero, name)}; set it back, "
                "or remove the attempt's checkpoints to start over"
            )
