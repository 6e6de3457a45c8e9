"""Memory of the sampling engines at the shapes of Llama 3 8B."""

from __future__ import annotations

import pytest

from tests.training_core.sizes.published_shapes import LLAMA_3_8B
from training_core.sizes import sampler
from training_core.sizes.decoder_config import decoder_of

GIB = 2**30
EIGHT_B = decoder_of(LLAMA_3_8B, "it")
N = EIGHT_B.parameters()


def test_a_token_in_the_cache_has_keys_and_values_of_all_layers():
    # 2 * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB
    assert sampler.kv_bytes_per_token(EIGHT_B, 2) == 128 * 1024


def test_vllm_takes_its_share_and_caches_what_the_weights_leave():
    found = sampler.vllm(EIGHT_B, 80 * GIB, 0.4)
    assert found.total == pytest.approx(32 * GIB)
    assert found.weights == 2 * N
    too_small = sampler.vllm(EIGHT_B, 24 * GIB, 0.4)
    assert (too_small.weights, too_small.kv_cache) == (2 * N, 0)


def test_transformers_keeps_the_logits_of_every_step():
    found = sampler.transformers(EIGHT_B, 4, rows=500, max_tokens=2048, max_response_tokens=1024)
    assert found.weights == 4 * N
    assert found.activations == 128 * 1024 * 128256 * 4  # 62.6 GiB for 128 rows at once
    assert found.kv_cache == 128 * 2048 * 256 * 1024
    idle = sampler.transformers(EIGHT_B, 4, rows=0, max_tokens=2048, max_response_tokens=1024)
    assert idle.total == 4 * N
