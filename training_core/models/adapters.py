"""Low-rank adapters. Only this module and `merging` import peft.

An adapter is injected *into* the model: class, body and output layer of the model do not change, so
all code for plain models also works with an adapter. On export the adapter is merged into the
weights, so a later stage loads a plain model. With its own adapter disabled, that stage has exactly
the model from which it started.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer, cast_adapter_dtype
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn

from training_core.errors import ConfigError
from training_core.models.language_model import LanguageModel
from training_core.models.options import LoraOptions
from training_core.models.parts import SCALAR_HEADS

NAME = "default"
"""Name of the adapter inside the model; peft's default."""

PEFT_PREFIX = "base_model.model."
"""Prefix of the parameter names of a model wrapped by peft, also in files."""


def attach(model: LanguageModel, lora: LoraOptions, *, seed: int) -> LanguageModel:
    """Add a new adapter to `model` and freeze everything else except a scalar head.

    B starts at zero, so the outputs of the model do not change. The adapter is always in float32,
    because updates of normal size would be lost in bfloat16.

    Args:
        model: a causal language model or sequence classifier without an adapter.
        lora: rank, scale and target modules.
        seed: seed of A's random initialisation; the global generator is not changed.

    Returns:
        `model` itself.

    Raises:
        ConfigError: if no module has a target name, or a target is the output layer or the
            embeddings.
    """
    targets = lora.target_modules
    heads = {name: module for name, module in model.named_children() if name in SCALAR_HEADS}
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] - a float works too
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=list(heads) or None,
        task_type=_task(model) if heads else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Warnings for stacked experts and GPT-2's transposed layers, which peft handles correctly.
        warnings.filterwarnings("ignore", "fan_in_fan_out|The following (rank|alpha)_pattern")
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, NAME)
        except ValueError as error:
            raise ConfigError(
                f"lora.target_modules={lora.target_modules!r} does not fit "
                f"{type(model).__name__}: {error}. Use all-linear, or e.g. the names "
                f"{_linear_names(model)}"
            ) from error
    _require_plain_ends(model)
    cast_adapter_dtype(model, NAME)
    for head in heads.values():
        head.requires_grad_(True)
    return model


def _task(classifier: nn.Module) -> str:
    return "TOKEN_CLS" if "TokenClassification" in type(classifier).__name__ else "SEQ_CLS"


def _linear_names(model: nn.Module) -> list[str]:
    names = {
        name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)
    }
    return sorted(names)


def _require_plain_ends(model: LanguageModel) -> None:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if any(isinstance(end, BaseTunerLayer) for end in ends):
        raise ConfigError(
            "lora.target_modules contains the embeddings or the output layer. They are often one "
            "tied matrix and are used directly for log-probabilities; choose layers of the body"
        )


@contextmanager
def adapter_disabled(model: LanguageModel) -> Iterator[LanguageModel]:
    """Disable the adapter: inside the block `model` is the model before `attach`.

    So a LoRA policy needs no second model for its reference. This is correct only if the policy was
    equal to the reference before training. Checkpoints of Ratchet have merged adapters, so with
    this stage's adapter disabled the model is the policy of the previous stage.

    Raises:
        ConfigError: if there is no adapter, or if weights outside of it are trained, because
            disabling the adapter would not undo their updates.

    Source:
        Bugs where the reference was the base model instead of the SFT model: LLaMA-Factory#8459,
        TRL#872.
    """
    layers: list[Any] = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    own = {id(p) for m in layers for p in m.parameters()}
    others = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in own]
    if not layers or others:
        found = f"{others[:3]} trained outside of it" if layers else "no adapter"
        raise ConfigError(
            f"expected a model that trains only an adapter, found {found}; "
            "load the reference as a separate model"
        )
    trained = [p for m in layers for p in m.parameters() if p.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield model
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter in (p for m in layers for p in m.parameters()):
            parameter.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)


def merged_state(model: LanguageModel, device: torch.device | None = None) -> dict[str, Tensor]:
    """Return the weights of the plain model with the same outputs, with the plain model's names.

    The model itself is not changed, so the result can be saved or sent to a rollout engine during
    training. Tensors without an adapter are shared with the model. A 4-bit base is returned in the
    dtype of the rest of the model, with the values that the forward pass uses.

    Args:
        model: with an adapter.
        device: of the result; None: that of the model.

    Returns:
        Parameter and buffer names of a model without adapter -> tensor.
    """
    deltas = {_plain(f"{name}.{_target(m)}"): m for name, m in model.named_modules() if _is_lora(m)}
    quantised = {f"{name}.weight": m for name, m in model.named_modules() if _is_quantised(m)}
    inside = tuple(f"{name}." for name in quantised)  # the scales of 4-bit weights
    return {
        _plain(name): _merged(
            quantised.get(name, tensor), deltas.get(_plain(name)), dtype=model.dtype
        ).to(device)
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name and not name.startswith(inside)
    }


def _plain(name: str) -> str:
    """Return the name of a parameter in a model without adapter."""
    return name.replace(".base_layer", "")


def _is_lora(module: nn.Module) -> bool:
    return isinstance(module, LoraLayer)


def _target(layer: Any) -> str:
    """Return which parameter of its module the adapter changes; stacked experts have several."""
    return getattr(layer, "parameter_name", "weight")


def _is_quantised(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    is_inner = not isinstance(module, LoraLayer)
    return is_inner and isinstance(weight, Tensor) and not weight.is_floating_point()


@torch.no_grad()
def _merged(source: Tensor | nn.Module, layer: Any | None, *, dtype: torch.dtype) -> Tensor:
    if isinstance(source, Tensor):
        weight, dtype = source, source.dtype
    else:
        weight = dequantize_module_weight(source)
    if layer is not None:
        delta = layer.get_delta_weight(NAME)
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + delta
    return weight.to(dtype)


def plain_twin(model: LanguageModel) -> LanguageModel:
    """Return a model of the same class with the adapter merged; it can be saved but not run.

    Its tensors are in CPU memory, and shared with `model` if they are there without an adapter. A
    4-bit model may be too large for a GPU in its own dtype. Buffers that are computed at every load
    (rotary frequencies) stay empty.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    with torch.device("meta"):
        twin = type(model)(config)
    twin.load_state_dict(merged_state(model, torch.device("cpu")), assign=True)
    twin.tie_weights()
    if model.can_generate():
        twin.generation_config = model.generation_config
    return twin
