"""Memory of the engines that sample. All results are in bytes."""

from __future__ import annotations

from training_core.sizes.decoder import Decoder
from training_core.sizes.model_use import FLOAT
from training_core.sizes.training_memory import Parts

VLLM_BYTES = 2
"""Bytes per number in vLLM on a GPU, which always computes in bfloat16."""
ROWS = 128
"""Sequences that transformers samples at once (`transformers_engine.MAX_ROWS`)."""
CPU_CACHE_BYTES = 2**30
"""Key-value cache of vLLM on a CPU (`kv_cache_gib` of `VllmEngine`)."""


def kv_bytes_per_token(decoder: Decoder, number_bytes: int) -> int:
    """Return the bytes of one token's keys and values: 2 * layers * K * bytes per number.

    Source:
        Ainslie et al. 2023, section 2 (grouped queries), https://arxiv.org/abs/2305.13245
    """
    return 2 * decoder.layers * decoder.kv_width * number_bytes


def vllm(decoder: Decoder, gpu_bytes: float, fraction: float) -> Parts:
    """Return what vLLM takes on a GPU: always `fraction` of it.

    The cache gets what the weights in bfloat16 leave. A negative rest means that vLLM cannot start;
    then the parts are the weights and nothing else.
    """
    weights = decoder.parameters() * VLLM_BYTES
    return Parts(weights=weights, kv_cache=max(0.0, fraction * gpu_bytes - weights))


def vllm_on_cpu(decoder: Decoder) -> Parts:
    """Return what vLLM takes without a GPU: weights in float32 and a cache of fixed size."""
    return Parts(weights=decoder.parameters() * FLOAT, kv_cache=CPU_CACHE_BYTES)


def transformers(
    decoder: Decoder, number_bytes: int, *, rows: int, max_tokens: int, max_response_tokens: int
) -> Parts:
    """Return what `transformers.generate` takes: a copy of the policy, a cache, and all logits.

        b N + R T (bytes per token of the cache) + 4 R A V

    Args:
        decoder: N parameters, vocabulary V.
        number_bytes: b.
        rows: sequences in a call of the engine; it divides them into calls of R <= `ROWS`.
        max_tokens: T, prompt and response together.
        max_response_tokens: A; the logits of each step are kept in float32.
    """
    at_once = min(rows, ROWS)
    cache = at_once * max_tokens * kv_bytes_per_token(decoder, number_bytes)
    logits = at_once * max_response_tokens * decoder.vocabulary * FLOAT
    return Parts(weights=decoder.parameters() * number_bytes, activations=logits, kv_cache=cache)
