"""Low-rank adapters: the one door to peft.

An adapter is put *into* the model: its class, its body and its output layer stay what they were,
and everything that works on a plain model works on this one. On export it is merged into the
weights, so whatever a later stage loads is a plain model, and that stage's own adapter, switched
off, is exactly the model it started from.
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
"""Of the adapter inside the model; peft's own default."""

PEFT_PREFIX = "base_model.model."
"""What peft puts before the names of a wrapped model's parameters, in files too."""


def attach(model: LanguageModel, lora: LoraOptions, *, seed: int) -> LanguageModel:
    """Put a fresh adapter into `model` and freeze everything else but a scalar head.

    B starts at zero, so the model computes what it did before. The adapter is in float32 whatever
    the model is in: steps of the usual size would be lost in bfloat16.

    Args:
        model: a causal language model or sequence classifier without an adapter.
        lora: rank, scale and places.
        seed: of A's random start; the global generator is left alone.

    Returns:
        `model` itself.

    Raises:
        ConfigError: if no module has such a name, or the adapter would change the output layer or
            the embeddings.
    """
    targets = lora.target_modules
    heads = {name: module for name, module in model.named_children() if name in SCALAR_HEADS}
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] - a float is as good
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=list(heads) or None,
        task_type=_task(model) if heads else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Of stacked experts and of GPT-2's transposed layers, which peft handles all the same.
        warnings.filterwarnings("ignore", "fan_in_fan_out|The following (rank|alpha)_pattern")
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, NAME)
        except ValueError as error:
            raise ConfigError(
                f"lora.target_modules={lora.target_modules!r} does not fit "
                f"{type(model).__name__}: {error}. Use all-linear, or names such as "
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
            "lora.target_modules names the embeddings or the output layer, which are often one "
            "tied matrix and are read directly for log-probabilities; name layers of the body"
        )


@contextmanager
def adapter_disabled(model: LanguageModel) -> Iterator[LanguageModel]:
    """Switch the adapter off: inside, `model` is what it was before the adapter was attached.

    This is the reference of a LoRA policy, without a second model. It is the right one only if the
    policy started as the reference; a checkpoint of Ratchet has its adapter merged, so the adapter
    of this stage, switched off, is the policy of the stage before.

    Raises:
        ConfigError: if there is no adapter, or if weights outside of it are trained: switching the
            adapter off would not undo those.

    Source:
        The reference was the base model instead of the SFT model: LLaMA-Factory#8459, TRL#872.
    """
    layers: list[Any] = [m for m in model.modules() if isinstance(m, BaseTunerLayer)]
    own = {id(p) for m in layers for p in m.parameters()}
    others = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in own]
    if not layers or others:
        found = f"{others[:3]} trained outside of it" if layers else "no adapter"
        raise ConfigError(
            f"expected a model that is trained through an adapter alone, found {found}; "
            "load the reference as a model of its own"
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


def merged_state(model: LanguageModel) -> dict[str, Tensor]:
    """Return the weights of the plain model that computes the same, under its names.

    The model itself is not changed, so this can be saved, or sent to a rollout engine, in the
    middle of training. Tensors without an adapter are shared with the model. A base in 4 bits comes
    out in the dtype of the rest of the model, with the values that were computed with.

    Returns:
        Parameter and buffer names of a model without adapter -> tensor.
    """
    deltas = {_plain(f"{name}.{_target(m)}"): m for name, m in model.named_modules() if _is_lora(m)}
    quantised = {f"{name}.weight": m for name, m in model.named_modules() if _is_quantised(m)}
    inside = tuple(f"{name}." for name in quantised)  # the scales of 4-bit weights
    return {
        _plain(name): _merged(
            quantised.get(name, tensor), deltas.get(_plain(name)), dtype=model.dtype
        )
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name and not name.startswith(inside)
    }


def _plain(name: str) -> str:
    """Name of a parameter in a model without adapter."""
    return name.replace(".base_layer", "")


def _is_lora(module: nn.Module) -> bool:
    return isinstance(module, LoraLayer)


def _target(layer: Any) -> str:
    """Which parameter of its module the adapter changes; stacked experts have several."""
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
    """Return a model of the same class with the adapter merged, to be saved and not to be run.

    Tensors without an adapter are shared with `model`; what is computed anew at every load (rotary
    frequencies) is left empty.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    with torch.device("meta"):
        twin = type(model)(config)
    twin.load_state_dict(merged_state(model), assign=True)
    twin.tie_weights()
    if model.can_generate():
        twin.generation_config = model.generation_config
    return twin
