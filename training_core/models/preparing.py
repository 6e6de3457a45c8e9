"""What `LoadOptions` mean: arguments of `from_pretrained`, then adapter, frozen parts, memory."""

from __future__ import annotations

import importlib.util
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from training_core.errors import ConfigError
from training_core.models.language_model import LanguageModel
from training_core.models.options import LoadOptions
from training_core.models.parts import SCALAR_HEADS


def loading_arguments(
    options: LoadOptions | None, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that `options` ask for.

    Args:
        options: None means the defaults.
        dtype: overrides that of `options`.

    Raises:
        ConfigError: if this machine cannot do what is asked: 4 bits, FlashAttention.
    """
    options = options or LoadOptions()
    arguments: dict[str, Any] = {"dtype": dtype or getattr(torch, options.dtype)}
    if options.attention != "auto":
        arguments["attn_implementation"] = options.attention
    if options.attention == "flash_attention_2":
        _require_flash_attention(options.dtype)
        arguments["device_map"] = {"": "cuda"}  # it computes nowhere else
    if options.lora is not None and options.lora.load_in_4bit:
        _require_4bit()
        arguments["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=arguments["dtype"],
            llm_int8_skip_modules=["lm_head", *SCALAR_HEADS],
        )
        arguments["device_map"] = {"": "cuda" if torch.cuda.is_available() else "cpu"}
    return arguments


def _require_flash_attention(dtype: str) -> None:
    if not (torch.cuda.is_available() and importlib.util.find_spec("flash_attn")):
        raise ConfigError(
            "attention=flash_attention_2 needs a CUDA device and the package flash-attn, found "
            f"{torch.cuda.device_count()} devices; install it, or use attention=sdpa"
        )
    if dtype != "bfloat16":
        raise ConfigError(
            f"attention=flash_attention_2 needs dtype=bfloat16, found {dtype}; change either"
        )


def _require_4bit() -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "lora.load_in_4bit needs the package bitsandbytes, which is not installed; "
            "`pip install 'ratchet-rlhf[qlora]'`, or set lora.load_in_4bit=false"
        )


def keep_weights_unpacked(model: nn.Module) -> None:
    """Make bitsandbytes leave 4-bit weights as they are.

    On some CPUs it packs them for inference at the first pass without gradients. Gradients would
    then stop at them without an error, as after the reference's log-probabilities.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportArgumentType] - a flag


def prepare(model: LanguageModel, options: LoadOptions | None) -> LanguageModel:
    """Make a loaded (or scratch) model what `options` ask for, in place.

    Args:
        model: a causal language model or sequence classifier without an adapter.
        options: None changes nothing.

    Returns:
        `model` itself.

    Raises:
        ConfigError: if a pattern of `frozen` matches no parameter, nothing is left to train, or
            the adapter does not fit.
    """
    if options is None:
        return model
    if options.lora is not None:
        from training_core.models.adapters import attach  # noqa: PLC0415 - imports peft: seconds

        attach(model, options.lora, seed=options.seed)
    freeze_parts(model, options.frozen)
    if options.gradient_checkpointing:
        # The reentrant variant gives no gradient at all where the layer's input needs none, as
        # with a frozen embedding below an adapter.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def freeze_parts(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Take parameters out of training by name.

    Args:
        model: anything with parameters.
        patterns: shell patterns of full parameter names, as in `model.layers.[0-3].*`. Tied
            matrices have the name of the first: freezing `model.embed_tokens.*` freezes a tied
            output layer too.

    Raises:
        ConfigError: if a pattern matches nothing, or nothing is left to train.
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        matches = [name for name in named if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(
                f"frozen: '{pattern}' matches no parameter; expected a pattern of names such as "
                f"{', '.join([*named][:2])}, …, {[*named][-1]}"
            )
        for name in matches:
            named[name].requires_grad_(False)
    if patterns and not any(p.requires_grad for p in named.values()):
        raise ConfigError(
            f"frozen={list(patterns)} leaves none of {len(named)} parameters to train; drop one"
        )
