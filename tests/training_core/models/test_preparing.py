"""What options do to a model: frozen parts, gradient checkpointing, attention, precision."""

import pytest
import torch
from pydantic import ValidationError

from stages.configs.model_config import ModelConfig
from tests.tolerances import assert_same_through
from training_core.data.batching import collate
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.models.options import LoadOptions, LoraOptions
from training_core.models.preparing import freeze_parts, loading_arguments, prepare
from training_core.types import Example

BATCH = collate(
    [
        Example((5, 9, 7, 30, 12, 6, 2), (0, 0, 0, 1, 1, 1, 1)),
        Example((5, 9, 7, 40, 2), (0, 0, 0, 1, 1)),
    ],
    0,
)


def gradients(model):
    model.train()
    logprobs(model, BATCH).sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize(
    ("architecture", "target"), [("llama-tied", "v_proj"), ("gpt2", "c_attn"), ("gemma2", "v_proj")]
)
def test_gradient_checkpointing_gives_the_same_gradients_and_computes_twice(
    tiny, architecture, target, is_lora
):
    lora = LoraOptions(rank=2, target_modules=(target,)) if is_lora else None
    no_dropout = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
    passes, found = {False: 0, True: 0}, {}
    for is_on in (False, True):
        model = tiny(architecture, **(no_dropout if architecture == "gpt2" else {}))
        prepare(model, LoadOptions(lora=lora, gradient_checkpointing=is_on))
        model.double()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, 0.1)  # at its zero start, A has no gradient

        def count(*_, is_on=is_on):
            passes[is_on] += 1

        mlp = next(m for name, m in model.named_modules() if name.endswith(".0.mlp"))
        mlp.register_forward_pre_hook(count)
        found[is_on] = gradients(model)
    assert passes == {False: 1, True: 2}
    assert found[True].keys() == found[False].keys()
    for name, gradient in found[False].items():
        assert gradient.abs().max() > 0, name
        assert_same_through(model, found[True][name], gradient, name)


def test_frozen_parts_have_no_gradient_and_the_rest_has(tiny):
    model = tiny("qwen2")
    prepare(model, LoadOptions(frozen=("model.embed_tokens.*", "model.layers.[0-0].*")))
    names = gradients(model)
    assert "lm_head.weight" in names
    assert {n.split(".")[2] for n in names if "layers" in n} == {"1"}
    assert all(g.abs().max() > 0 for g in names.values())
    assert model.model.embed_tokens.weight.grad is None


def test_a_pattern_that_matches_nothing_is_an_error(tiny):
    with pytest.raises(
        ConfigError, match=r"'transformer\.\*' matches no parameter; .*embed_tokens"
    ):
        freeze_parts(tiny("qwen2"), ("model.norm.*", "transformer.*"))


def test_freezing_everything_is_an_error(tiny):
    with pytest.raises(ConfigError, match="leaves none of"):
        freeze_parts(tiny("qwen2"), ("model.*", "lm_head.*"))


def test_attention_and_precision_reach_the_model(tiny, tokenizer, tmp_path):
    hub.save(tiny("llama-tied"), tokenizer, tmp_path)
    default = hub.load_policy(tmp_path)
    assert (default.config._attn_implementation, default.dtype) == ("sdpa", torch.float32)
    chosen = hub.load_policy(tmp_path, options=LoadOptions(dtype="bfloat16", attention="eager"))
    assert (chosen.config._attn_implementation, chosen.dtype) == ("eager", torch.bfloat16)
    assert hub.recorded_dtype(tmp_path) == torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU lacks")
def test_what_needs_a_gpu_says_what_to_install():
    with pytest.raises(ConfigError, match="flash-attn"):
        loading_arguments(LoadOptions(attention="flash_attention_2"))


def test_4_bits_without_bitsandbytes_say_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"bitsandbytes.*qlora"):
        loading_arguments(LoadOptions(lora=LoraOptions(load_in_4bit=True)))


def test_settings_become_options():
    settings = ModelConfig.model_validate(
        {"dtype": "bfloat16", "lora": {"rank": 8, "target_modules": ["q_proj"]}}
    )
    assert settings.load_options(seed=3) == LoadOptions(
        dtype="bfloat16", lora=LoraOptions(rank=8, target_modules=("q_proj",)), seed=3
    )
    assert ModelConfig().load_options(seed=0) == LoadOptions()


def test_freezing_beside_an_adapter_is_an_error():
    with pytest.raises(ValidationError, match=r"lora\.target_modules"):
        ModelConfig.model_validate({"frozen": ["model.layers.0.*"], "lora": {}})


def test_a_model_that_caps_its_attention_scores_gets_a_kernel_that_does(tiny, tokenizer, tmp_path):
    model = tiny("gemma2", attn_logit_softcapping=0.5)
    model.set_attn_implementation("eager")
    hub.save(model, tokenizer, tmp_path)
    ids = BATCH.input_ids
    with torch.no_grad():
        expected = model(ids).logits
        assert_same_through(model, hub.load_policy(tmp_path)(ids).logits, expected)
        model.set_attn_implementation("sdpa")
        assert (model(ids).logits - expected).abs().max() > 0.01  # it is left out
    with pytest.raises(ConfigError, match=r"cannot cap .* caps them at 0\.5; use attention=auto"):
        hub.load_policy(tmp_path, options=LoadOptions(attention="sdpa"))
