"""An adapter on weights of 4 bits, with the real bitsandbytes; small matrices, on any machine."""

import pytest
import torch

from tests.tolerances import assert_same_through
from training_core.data.batching import collate
from training_core.models import hub
from training_core.models.adapters import adapter_disabled
from training_core.models.causal_lm import logprobs
from training_core.models.options import LoadOptions, LoraOptions
from training_core.models.parts import TrainedPart
from training_core.models.scalar_head import sequence_scores
from training_core.types import Example

SEQUENCE = Example((5, 9, 7, 30, 12, 2), (0, 0, 0, 1, 1, 1))
PLAIN = LoadOptions(lora=LoraOptions(rank=2), seed=4)
QUANTISED = LoadOptions(lora=LoraOptions(rank=2, load_in_4bit=True), seed=4)


@pytest.fixture
def base(tiny, tokenizer, tmp_path):
    hub.save(tiny("llama-tied"), tokenizer, tmp_path / "base")
    return tmp_path / "base"


def loss_of(model):
    return -logprobs(model, collate([SEQUENCE], 0)).sum()


def gradients(model):
    loss_of(model).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def moved(model):
    """B is zero at first, which would hide A's gradient."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in TrainedPart(model).parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def test_matrices_are_held_in_4_bits_and_the_rest_is_not(base):
    model = hub.load_policy(base, options=QUANTISED)
    layer = model.model.layers[0]
    assert layer.mlp.up_proj.base_layer.weight.dtype == torch.uint8
    assert (
        layer.mlp.up_proj.base_layer.weight.numel()
        == layer.mlp.up_proj.base_layer.in_features
        * (layer.mlp.up_proj.base_layer.out_features // 2)
    )
    assert model.lm_head.weight.dtype == layer.input_layernorm.weight.dtype == torch.float32


def test_its_gradient_is_that_of_an_adapter_on_the_dequantised_weights(base, tokenizer, tmp_path):
    """Also after a pass without gradients, as the reference's: bitsandbytes packs weights then."""
    quantised = hub.load_policy(base, options=QUANTISED)
    with torch.no_grad(), adapter_disabled(quantised):
        reference = loss_of(quantised)
    hub.save(quantised, tokenizer, tmp_path / "dequantised")  # B is zero: the base alone
    plain = hub.load_policy(tmp_path / "dequantised", options=PLAIN)
    assert_same_through(plain, loss_of(plain), reference)
    assert abs(reference.item() - loss_of(hub.load_policy(base)).item()) > 0.1  # 4 bits are fewer
    found, expected = gradients(moved(quantised)), gradients(moved(plain))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        assert_same_through(plain, found[name], gradient, name)


def test_what_is_saved_is_the_model_that_was_trained(base, tokenizer, tmp_path):
    model = moved(hub.load_policy(base, options=QUANTISED))
    hub.save(model, tokenizer, tmp_path / "out")
    plain = hub.load_policy(tmp_path / "out")
    assert_same_through(plain, loss_of(plain), loss_of(model))
    assert abs(loss_of(plain).item() - loss_of(hub.load_policy(base)).item()) > 0.1


def test_a_reward_models_head_is_trained_whole_and_kept(base, tokenizer, tmp_path):
    model = moved(hub.load_scalar_model(base, options=QUANTISED))
    batch = collate([SEQUENCE], 0)
    score = sequence_scores(model, batch)
    score.sum().backward()
    assert model.score.weight.dtype == torch.float32
    assert model.score.weight.grad.abs().sum() > 0
    hub.save(model, tokenizer, tmp_path / "out")
    plain = hub.load_scalar_model(tmp_path / "out")
    assert_same_through(plain, sequence_scores(plain, batch), score)
