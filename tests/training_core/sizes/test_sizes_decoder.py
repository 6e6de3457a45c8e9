"""Parameters of decoders: by the formula, against transformers' own models without weights."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from tests.training_core.sizes.published_shapes import (
    GEMMA_2_9B,
    GEMMA_3_1B,
    GEMMA_7B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    QWEN_2_5_7B,
    QWEN_2_5_32B,
    QWEN_3_8B,
    SMALL,
)
from training_core.errors import ConfigError
from training_core.sizes.decoder_config import KINDS, decoder_of

MODELS = {
    "llama": {"model_type": "llama", **SMALL},
    "llama, tied, biases, no groups": {
        "model_type": "llama",
        **SMALL,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {"model_type": "mistral", **SMALL, "head_dim": 32},
    "qwen2": {"model_type": "qwen2", **SMALL},
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 24, "tie_word_embeddings": True},
    "mixtral": {
        "model_type": "mixtral",
        **SMALL,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
    },
    "llama 3 8b": LLAMA_3_8B,
    "llama 3 70b": LLAMA_3_70B,
    "qwen 2.5 7b": QWEN_2_5_7B,
    "qwen 2.5 32b": QWEN_2_5_32B,
    "qwen 3 8b": QWEN_3_8B,
    "gemma 7b": GEMMA_7B,
    "gemma 2 9b": GEMMA_2_9B,
    "gemma 3 1b": GEMMA_3_1B,
}


def without_weights(kind, config):
    fields = dict(config)
    own = AutoConfig.for_model(fields.pop("model_type"), **fields, num_labels=1)
    with torch.device("meta"):
        return kind.from_config(own)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_names_and_shapes_are_those_of_transformers(config):
    model = without_weights(AutoModelForCausalLM, config)
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    decoder = decoder_of(config, "it")
    assert {w.name: w.shape for w in decoder.weights()} == expected
    assert decoder.parameters() == sum(p.numel() for p in model.parameters())


def test_every_architecture_is_among_them():
    assert {config["model_type"] for config in MODELS.values()} == set(KINDS)


def test_the_largest_models_have_their_known_numbers_of_parameters():
    # 8B: the two matrices of the vocabulary 2 * 128256 * 4096 = 1,050,673,152, and 32 layers of
    # 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096 = 218,112,000; 4096 at the end
    assert decoder_of(LLAMA_3_8B, "it").parameters() == 8_030_261_248
    assert decoder_of(LLAMA_3_70B, "it").parameters() == 70_553_706_496
    assert decoder_of(GEMMA_2_9B, "it").parameters() == 9_241_705_984
    assert decoder_of(GEMMA_3_1B, "it").parameters() == 999_885_952


def test_a_reward_model_has_one_output_instead_of_a_vocabulary():
    model = without_weights(AutoModelForSequenceClassification, MODELS["llama"])
    decoder = decoder_of(MODELS["llama"], "it")
    assert decoder.parameters("score") == sum(p.numel() for p in model.parameters())


def test_a_token_uses_only_its_experts():
    dense = decoder_of({**MODELS["mixtral"], "num_experts_per_tok": 4}, "it")
    sparse = decoder_of(MODELS["mixtral"], "it")
    # two of four experts of 3 * 96 * 160 weights less, in three layers
    assert dense.active_body - sparse.active_body == 3 * 2 * 3 * 96 * 160


def test_an_architecture_that_is_not_known_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"M is a 'gpt_neo', .* only of llama, mistral, gemma"):
        decoder_of({"model_type": "gpt_neo"}, "M")


def test_a_missing_number_is_named():
    fields = {k: v for k, v in LLAMA_3_8B.items() if k != "hidden_size"}
    with pytest.raises(ConfigError, match=r"config\.json of M lacks a number: 'hidden_size'"):
        decoder_of(fields, "M")


@pytest.mark.parametrize("value", ["12", -1, 3.5, [1]])
def test_what_is_no_number_of_layers_is_named(value):
    with pytest.raises(ConfigError, match=r"config\.json of M has the layers"):
        decoder_of({**LLAMA_3_8B, "num_hidden_layers": value}, "M")


def test_layers_without_experts_are_refused():
    with pytest.raises(ConfigError, match="some layers have no experts"):
        decoder_of({**MODELS["qwen3_moe"], "mlp_only_layers": [0]}, "M")
