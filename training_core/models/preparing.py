"""Apply `LoadOptions`: arguments of `from_pretrained`, then adapter, frozen parameters, memory."""

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
    """Return the arguments of `from_pretrained` for `options`.

    Args:
        options: None uses the defaults.
        dtype: overrides the dtype of `options`.

    Raises:
        ConfigError: if 4 bits or FlashAttention is requested but not available on this machine.
    """
    options = options or LoadOptions()
    arguments: dict[str, Any] = {"dtype": dtype or getattr(torch, options.dtype)}
    if options.attention != "auto":
        arguments["attn_implementation"] = options.attention
    if options.attention == "flash_attention_2":
        _require_flash_attention(options.dtype)
        arguments["device_map"] = {"": "cuda"}  # it runs only there
    require_packages(options)
    if options.lora is not None and options.lora.load_in_4bit:
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
            f"attention=flash_attention_2 needs dtype=bfloat16, found {dtype}; change one of them"
        )


def require_packages(options: LoadOptions) -> None:
    """Check that the package for 4 bits is installed, if they are requested.

    Raises:
        ConfigError: if it is not.
    """
    is_4bit = options.lora is not None and options.lora.load_in_4bit
    if is_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "lora.load_in_4bit needs the package bitsandbytes, which is not installed; "
            "`pip install 'ratchet-rlhf[qlora]'`, or set lora.load_in_4bit=false"
        )


def keep_weights_unpacked(model: nn.Module) -> None:
    """Prevent bitsandbytes from repacking 4-bit weights.

    On some CPUs it packs them for inference at the first pass without gradients, e.g. when the
    reference's log-probabilities are computed. Later gradients would stop there without an error.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportArgumentType] - a flag


def prepare(model: LanguageModel, options: LoadOptions | None) -> LanguageModel:
    """Apply `options` to a loaded (or scratch) model, in place.

    Args:
        model: a causal language model or sequence classifier without an adapter.
        options: None changes nothing but the attention of a model that `require_capped_scores` is
            about.

    Returns:
        `model` itself.

    Raises:
        ConfigError: if the attention cannot do what the model needs, a pattern of `frozen` matches
            no parameter, no parameter is left to train, or the adapter does not fit.
    """
    require_capped_scores(model, options)
    if options is None:
        return model
    if not options.dropout:
        disable_dropout(model)
    if options.lora is not None:
        from training_core.models.adapters import attach  # noqa: PLC0415 - imports peft: seconds

        attach(model, options.lora, seed=options.seed)
    freeze_parts(model, options.frozen)
    if options.gradient_checkpointing:
        # The reentrant variant gives no gradient if the layer's input needs none, e.g. with a
        # frozen embedding below an adapter.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def require_capped_scores(model: LanguageModel, options: LoadOptions | None) -> None:
    """Let a model that caps its attention scores (Gemma 2) use a kernel that does so.

    PyTorch's `scaled_dot_product_attention` has no cap, and transformers leaves it out there
    without a word. Every log-probability would be a little wrong.

    Raises:
        ConfigError: if `options` demand that kernel.
    """
    config = model.config.get_text_config()
    cap = getattr(config, "attn_logit_softcapping", None)
    if cap is None or config._attn_implementation != "sdpa":
        return
    if options is not None and options.attention == "sdpa":
        raise ConfigError(
            f"attention=sdpa cannot cap the attention scores, and {type(model).__name__} caps them "
            f"at {cap}; use attention=auto, eager or flash_attention_2"
        )
    model.set_attn_implementation("eager")


def freeze_parts(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freeze parameters by name.

    Args:
        model: any module.
        patterns: shell patterns of full parameter names, e.g. `model.layers.[0-3].*`. Tied
            matrices have the name of the first one: freezing `model.embed_tokens.*` also freezes
            a tied output layer.

    Raises:
        ConfigError: if a pattern matches no parameter, or no parameter is left to train.
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        matches = [name for name in named if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(
                f"frozen: '{pattern}' matches no parameter; expected a pattern for names such as "
                f"{', '.join([*named][:2])}, …, {[*named][-1]}"
            )
        for name in matches:
            named[name].requires_grad_(False)
    if patterns and not any(p.requires_grad for p in named.values()):
        raise ConfigError(
            f"frozen={list(patterns)} leaves none of {len(named)} parameters to train; "
            "remove a pattern"
        )


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in place; the model's config is not changed.

    Some layers contain an `nn.Dropout`, others a number, e.g. Llama's `attention_dropout`.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
