"""Adapters: attached, switched off, merged on saving, resumed."""

import math
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.tolerances import assert_same_through, in_widest_dtype, rounding
from training_core import checkpoint
from training_core.data.batching import collate
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.models.adapters import adapter_disabled, attach, merged_state
from training_core.models.causal_lm import logprobs
from training_core.models.options import LoadOptions, LoraOptions
from training_core.models.parts import TrainedPart, has_adapter
from training_core.models.scalar_head import sequence_scores
from training_core.types import Example

PAD = 0
IDS = torch.tensor([[5, 9, 7, 30, 12, 6, 2]])
CHOSEN = Example((5, 9, 7, 30, 12, 2), (0, 0, 0, 1, 1, 1))
REJECTED = Example((5, 9, 7, 41, 2), (0, 0, 0, 1, 1))
LORA = LoadOptions(lora=LoraOptions(rank=2), seed=4)
ALL = ["llama-tied", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "mixtral", "qwen3-moe"]


def trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def move(model, std=0.2):
    """What training might have done to whatever is trained."""
    generator = torch.Generator().manual_seed(1)
    for parameter in trained(model).values():
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=std)
    return model


def preference_loss(policy, ref_sums, beta=0.1):
    """-log sigmoid(beta * ((chosen - ref) - (rejected - ref)))."""
    ratios = logprobs(policy, collate([CHOSEN, REJECTED], PAD)).sum(dim=1) - ref_sums
    return -torch.nn.functional.logsigmoid(beta * (ratios[0] - ratios[1]))


def steps(model, engine, count):
    for _ in range(count):
        engine.backward(-logprobs(model, collate([CHOSEN, REJECTED], PAD)).sum())
        engine.step(2.0)


def engine_of(model, learning_rate=0.05):
    return TorchEngine(model, learning_rate=learning_rate, schedule=lambda step: 1.0 / (1 + step))


@pytest.mark.parametrize("architecture", ALL)
def test_an_adapter_starts_as_nothing_and_its_export_is_a_plain_model(
    tiny, tokenizer, tmp_path, architecture
):
    base = in_widest_dtype(tiny(architecture))
    hub.save(base, tokenizer, tmp_path / "base")
    policy = hub.load_policy(tmp_path / "base", dtype=base.dtype, options=LORA)
    kernel = policy.config._attn_implementation  # Gemma 2 gets one that caps its scores
    base.set_attn_implementation(kernel)
    with torch.no_grad():
        assert_same_through(base, policy(IDS).logits, base(IDS).logits)
        assert all("lora_" in name for name in trained(policy))
        moved = move(policy)(IDS).logits
        assert (moved - base(IDS).logits).abs().max() > 0.1
        hub.save(policy, tokenizer, tmp_path / "out")
        plain = AutoModelForCausalLM.from_pretrained(
            tmp_path / "out", dtype=base.dtype, attn_implementation=kernel
        )
        assert_same_through(plain, plain(IDS).logits, moved)
        assert torch.equal(policy(IDS).logits, moved)  # saving has not touched it
    assert not has_adapter(plain)
    assert has_adapter(policy)
    assert plain.state_dict().keys() == base.state_dict().keys()


def test_tied_embeddings_are_still_one_matrix_after_the_merge(tiny, tokenizer, tmp_path):
    policy = move(attach(tiny("llama-tied"), LoraOptions(rank=2), seed=0))
    hub.save(policy, tokenizer, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a mapping
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert reloaded.lm_head.weight is reloaded.model.embed_tokens.weight
    assert torch.equal(reloaded.lm_head.weight, policy.lm_head.weight)


def test_merged_state_is_the_base_plus_the_scaled_product(tiny):
    base = tiny("qwen2")
    weight = base.model.layers[0].mlp.up_proj.weight.detach().clone()
    policy = attach(base, LoraOptions(rank=2, alpha=6.0, target_modules=("up_proj",)), seed=0)
    move(policy)
    layer = policy.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    merged = merged_state(policy)
    # alpha / rank = 6 / 2 = 3; two products are added up, scaled, and added to the weight
    expected = weight + 3 * b @ a
    room = rounding(torch.float32, 4, float(expected.detach().abs().max()))
    found = merged["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(found, expected, rtol=0, atol=room)
    assert merged.keys() == tiny("qwen2").state_dict().keys()
    assert merged["model.embed_tokens.weight"].data_ptr() == (
        policy.model.embed_tokens.weight.data_ptr()
    )


def test_a_fresh_adapter_depends_on_its_seed_alone(tiny):
    torch.manual_seed(99)
    position = torch.get_rng_state()
    one, same, other = (attach(tiny("qwen2"), LoraOptions(rank=2), seed=s) for s in (1, 1, 2))
    pick = "model.layers.0.mlp.up_proj.lora_A.default.weight"
    assert torch.equal(one.state_dict()[pick], same.state_dict()[pick])
    assert not torch.equal(one.state_dict()[pick], other.state_dict()[pick])
    assert torch.equal(torch.get_rng_state(), position)


def test_the_reference_of_a_lora_policy_is_the_sft_model_and_stays_it(tiny, tokenizer, tmp_path):
    hub.save(tiny("llama-tied"), tokenizer, tmp_path / "base")
    sft = hub.load_policy(tmp_path / "base", options=LORA)
    steps(sft, engine_of(sft), 2)
    hub.save(sft, tokenizer, tmp_path / "sft")
    batch = collate([CHOSEN, REJECTED], PAD)
    with torch.no_grad():
        of_base = logprobs(hub.load_policy(tmp_path / "base"), batch).sum(dim=1)
        of_sft = logprobs(hub.load_policy(tmp_path / "sft"), batch).sum(dim=1)
    assert (of_base - of_sft).abs().min() > 0.1  # so that taking the wrong one would show

    policy = hub.load_policy(tmp_path / "sft", options=LORA)

    def reference():
        with torch.no_grad(), adapter_disabled(policy):
            return logprobs(policy, batch).sum(dim=1)

    before = reference()
    assert torch.equal(before, of_sft)
    assert preference_loss(policy, before).item() == pytest.approx(math.log(2), abs=1e-6)
    engine = engine_of(policy, learning_rate=1e-3)
    engine.backward(preference_loss(policy, before))
    engine.step(1.0)
    assert torch.equal(reference(), of_sft)
    assert preference_loss(policy, before).item() < math.log(2) - 1e-3


def test_switching_the_adapter_off_leaves_what_is_trained_as_it_was(tiny):
    policy = attach(tiny("mixtral"), LoraOptions(rank=2), seed=0)
    before = set(trained(policy))
    with adapter_disabled(policy):
        assert not trained(policy)
    assert set(trained(policy)) == before
    hub.freeze(policy)
    with adapter_disabled(policy):
        pass
    assert not trained(policy)


def test_switching_off_is_refused_where_it_would_not_give_the_reference(tiny):
    with pytest.raises(ConfigError, match="found no adapter"):
        adapter_disabled(tiny("qwen2")).__enter__()
    scored = attach(tiny("qwen2", head="SequenceClassification"), LoraOptions(rank=2), seed=0)
    with pytest.raises(ConfigError, match=r"score\.weight"):
        adapter_disabled(scored).__enter__()


@pytest.mark.parametrize("architecture", ["llama-tied", "gpt2", "mixtral"])
def test_a_reward_model_keeps_its_head_and_its_scores(tiny, tokenizer, tmp_path, architecture):
    base = in_widest_dtype(tiny(architecture))
    hub.save(base, tokenizer, tmp_path / "policy")
    model = hub.load_scalar_model(tmp_path / "policy", dtype=base.dtype, options=LORA)
    assert "score.weight" in trained(model)
    assert all("lora_" in name for name in trained(model) if name != "score.weight")
    move(model)
    model.config.reward_mean, model.config.reward_std = 0.25, 2.0
    batch = collate([CHOSEN, REJECTED], PAD)
    scores = sequence_scores(model, batch).detach()
    assert float((scores[0] - scores[1]).abs()) > 1e-3
    hub.save(model, tokenizer, tmp_path / "out")

    reloaded = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", num_labels=1, dtype=base.dtype
    )
    own = reloaded(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
    assert_same_through(reloaded, own.logits[:, 0], scores)
    ours = hub.load_scalar_model(tmp_path / "out", dtype=base.dtype)
    assert_same_through(reloaded, sequence_scores(ours, batch), scores)
    assert (reloaded.config.reward_mean, reloaded.config.reward_std) == (0.25, 2.0)


def test_a_directory_with_an_adapter_is_not_loaded_as_a_model(tiny, tmp_path):
    config = LoraConfig(r=2, task_type="CAUSAL_LM")
    get_peft_model(tiny("qwen2"), config).save_pretrained(tmp_path)
    for load in (hub.load_policy, hub.load_scalar_model):
        with pytest.raises(DataError, match=r"PEFT adapter.*ratchet merge"):
            load(tmp_path)


@pytest.mark.parametrize("wrap", [TrainedPart, lambda model: model])
def test_a_resumed_adapter_run_is_the_undisturbed_run(tiny, tmp_path: Path, wrap):
    lora = LoraOptions(rank=2, dropout=0.3)

    def start():
        model = attach(tiny("llama-tied"), lora, seed=0).train()
        return model, engine_of(model)

    torch.manual_seed(7)
    whole, engine = start()
    steps(whole, engine, 4)

    torch.manual_seed(7)
    first, engine = start()
    steps(first, engine, 2)
    state = {"engine": engine.state_dict(), "rng": torch.get_rng_state()}
    saved = checkpoint.save(tmp_path, 2, {"model": wrap(first)}, state, keep=1)

    torch.manual_seed(8)
    second, engine = start()
    state = checkpoint.load(saved, {"model": wrap(second)})
    engine.load_state_dict(state["engine"])
    torch.set_rng_state(state["rng"])
    steps(second, engine, 2)
    for name, parameter in whole.named_parameters():
        assert torch.equal(second.get_parameter(name), parameter), name
    assert not torch.equal(trained(whole).popitem()[1], trained(first).popitem()[1])


def test_the_adapter_of_a_bfloat16_model_is_in_float32(tiny, tokenizer, tmp_path):
    hub.save(tiny("llama-tied"), tokenizer, tmp_path)
    options = LoadOptions(dtype="bfloat16", lora=LoraOptions(rank=2))
    policy = move(hub.load_policy(tmp_path, options=options))
    assert {p.dtype for p in trained(policy).values()} == {torch.float32}
    assert policy.dtype == torch.bfloat16
    assert {t.dtype for t in merged_state(policy).values()} == {torch.bfloat16}
    steps(policy, engine_of(policy), 1)  # and it runs


def test_names_that_fit_no_module_are_an_error_that_lists_some(tiny):
    with pytest.raises(ConfigError, match=r"query_key_value.*down_proj"):
        attach(tiny("qwen2"), LoraOptions(target_modules=("query_key_value",)), seed=0)


@pytest.mark.parametrize("end", ["lm_head", "embed_tokens"])
def test_an_adapter_on_the_ends_is_refused(tiny, end):
    with pytest.raises(ConfigError, match="embeddings or the output layer"):
        attach(tiny("qwen2"), LoraOptions(target_modules=(end,)), seed=0)
