"""Tiny random models of several architectures, each with something that the others lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES = {
    **{"vocab_size": 48, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("Llama", {**SIZES, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {**SIZES, "tie_word_embeddings": False}),  # biases in attention
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 8}),  # norms inside attention
    "gemma2": ("Gemma2", {**SIZES, "head_dim": 8, "final_logit_softcapping": 1.5}),
    "gemma3": ("Gemma3Text", {**SIZES, "head_dim": 8}),  # norms inside and after attention
    "gpt2": ("GPT2", GPT2_SIZES),  # learned positions, transposed linear layers
    "mixtral": ("Mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {**SIZES, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 8},
    ),
    "granite": ("Granite", {**SIZES, "logits_scaling": 3.0}),
    "cohere": ("Cohere", {**SIZES, "logit_scale": 0.25}),
}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """Build a random model: `tiny("qwen3")`, `tiny("gpt2", head="SequenceClassification")`."""

    def make(architecture: str, *, head: str = "CausalLM", seed: int = 0, **changes: Any) -> Any:
        name, sizes = ARCHITECTURES[architecture]
        config = getattr(transformers, f"{name}Config")(**{**sizes, **changes})
        if head == "CausalLM":
            made = transformers.AutoModelForCausalLM
        else:
            made, config.num_labels = transformers.AutoModelForSequenceClassification, 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = made.from_config(config)
            for parameter in model.parameters():  # their defaults are too small to see anything
                if parameter.ndim >= 2:
                    torch.nn.init.normal_(parameter, std=0.25)
        return model.eval()

    return make
