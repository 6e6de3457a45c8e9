"""From the numbers in a model's `config.json` to its shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from training_core.errors import ConfigError
from training_core.sizes.decoder import Decoder

Fields = Mapping[str, Any]


def decoder_of(config: Fields, where: str) -> Decoder:
    """Return the shapes that a `config.json` describes.

    Args:
        config: content of the file.
        where: name of the model, for the error.

    Raises:
        ConfigError: if its architecture is not one of `KINDS`, or a number is missing or is none.
    """
    kind = config.get("model_type")
    if kind not in KINDS:
        raise ConfigError(f"{where} is a '{kind}', and sizes are known only of {', '.join(KINDS)}")
    try:
        shapes = _shared(config) | KINDS[str(kind)](config)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ConfigError(f"the config.json of {where} lacks a number: {error}") from error
    for name, value in shapes.items():
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"the config.json of {where} has the {name} {value!r}")
    return Decoder(**shapes)


def _shared(config: Fields) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    return {
        "hidden": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "vocabulary": config["vocab_size"],
        "is_tied": bool(config.get("tie_word_embeddings")),
    }


def _llama(config: Fields) -> dict[str, Any]:
    has_bias = bool(config.get("attention_bias"))
    return {
        **_dense(config),
        "has_qkv_bias": has_bias,
        "has_output_bias": has_bias,
        "has_mlp_bias": bool(config.get("mlp_bias")),
    }


def _dense(config: Fields) -> dict[str, Any]:
    return {"intermediate": config["intermediate_size"]}


def _gemma(config: Fields) -> dict[str, Any]:
    return {**_dense(config), "is_tied": bool(config.get("tie_word_embeddings", True))}


def _gemma2(config: Fields) -> dict[str, Any]:
    return {**_gemma(config), "has_output_norms": True}


def _gemma3(config: Fields) -> dict[str, Any]:
    return {**_gemma2(config), "has_qk_norm": True}


def _qwen2(config: Fields) -> dict[str, Any]:
    return {**_dense(config), "has_qkv_bias": True}


def _qwen3(config: Fields) -> dict[str, Any]:
    has_bias = bool(config.get("attention_bias"))
    return {
        **_dense(config),
        "has_qkv_bias": has_bias,
        "has_output_bias": has_bias,
        "has_qk_norm": True,
    }


def _mixtral(config: Fields) -> dict[str, Any]:
    return {
        **_dense(config),
        "experts": config["num_local_experts"],
        "active_experts": config["num_experts_per_tok"],
    }


def _qwen3_moe(config: Fields) -> dict[str, Any]:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise TypeError("some layers have no experts")
    experts = config["num_experts"] if "num_experts" in config else config["num_local_experts"]
    return {
        **_qwen3(config),
        "intermediate": config["moe_intermediate_size"],
        "experts": experts,
        "active_experts": config["num_experts_per_tok"],
    }


KINDS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _dense,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
}
"""`model_type` -> the shapes that differ between architectures."""
