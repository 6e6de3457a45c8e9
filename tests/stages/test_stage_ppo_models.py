"""Where PPO's critic starts, which models it needs, and what the config refuses."""

from __future__ import annotations

import json
import re

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.first_models import load_critic, load_reference
from training_core.data.batching import collate
from training_core.data.chat import encode_prompt
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.scalar_head import sequence_scores
from training_core.rewards.model_reward import RewardModelReward
from training_core.types import Example, Rollout

PROMPTS = {"name": "cafe"}


def ppo(**changes):
    return PpoConfig.model_validate({"prompts": PROMPTS, **changes})


@pytest.fixture
def saved(make_policy, make_scalar_model, tokenizer, tmp_path):
    """A policy, and reward models whose scores differ by a factor of 8."""
    hub.save(make_policy(), tokenizer, tmp_path / "policy")
    for factor in (1, 8):
        model = make_scalar_model()
        with torch.no_grad():
            model.score.weight.mul_(factor)
        model.config.reward_mean, model.config.reward_std = 0.5 * factor, 2.0 * factor
        hub.save(model, tokenizer, tmp_path / f"scale-{factor}")
    return tmp_path


def rollouts_of(prompts, tokenizer):
    ids = (*tokenizer("here are two tea .").input_ids, tokenizer.eos_token_id)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return [Rollout(p, ids, (-1.0,) * len(ids), text, True, 0) for p in prompts]


@pytest.mark.parametrize("factor", [1, 8])
def test_the_critic_starts_with_the_normalised_scores_of_the_reward_model(
    saved, tokenizer, cafe_prompts, factor
):
    inputs = {"policy": saved / "policy", "reward_model": saved / f"scale-{factor}"}
    critic = load_critic(ppo(), inputs, tokenizer)
    rollouts = rollouts_of(cafe_prompts, tokenizer)
    with torch.no_grad():
        batch = collate([r.example() for r in rollouts], int(tokenizer.pad_token_id))
        values = sequence_scores(critic, batch).tolist()
    reward = RewardModelReward(inputs["reward_model"], normalise=True, micro_batch_tokens=512)
    assert values == pytest.approx(reward(rollouts), abs=1e-5)
    assert max(values) - min(values) > 0.1
    raw = load_critic(ppo(reward={"name": "reward_model", "normalise": False}), inputs, tokenizer)
    with torch.no_grad():
        found = sequence_scores(raw, batch).tolist()
    assert found == pytest.approx([factor * (2.0 * v + 0.5) for v in values], rel=1e-4)


def test_the_critic_of_another_reward_starts_from_the_policy_at_zero(saved, tokenizer):
    inputs = {"policy": saved / "policy", "reward_model": saved / "scale-8"}
    critic = load_critic(ppo(reward={"name": "cafe"}), inputs, tokenizer)
    assert not critic.score.weight.any()
    assert torch.equal(
        critic.model.embed_tokens.weight,
        hub.load_policy(inputs["policy"]).model.embed_tokens.weight,
    )


def swapped(tokenizer, one, two):
    """The same tokenizer, but two words have changed their ids."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    ids = content["model"]["vocab"]
    ids[one], ids[two] = ids[two], ids[one]
    inner = Tokenizer.from_str(json.dumps(content))
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    special = {name: getattr(tokenizer, name) for name in names}
    other = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    other.chat_template = tokenizer.chat_template
    return other


def test_a_critic_that_would_misread_the_policys_ids_is_refused(
    saved, make_scalar_model, tokenizer, tmp_path
):
    other = swapped(tokenizer, "two", "here")
    hub.save(make_scalar_model(), other, tmp_path / "other")
    inputs = {"policy": saved / "policy", "reward_model": tmp_path / "other"}
    with pytest.raises(ConfigError, match="every token must have one id in both"):
        load_critic(ppo(), inputs, tokenizer)


def test_a_reward_model_reads_the_text_if_only_the_response_has_other_ids(
    make_scalar_model, tokenizer, cafe_prompts, tmp_path
):
    prompt = next(p for p in cafe_prompts if not {"here", "are"} & set(p.text.split()))
    other = swapped(tokenizer, "here", "are")
    assert encode_prompt(other, "1", prompt.messages).input_ids == prompt.input_ids
    model = make_scalar_model()
    hub.save(model, other, tmp_path)
    (rollout,) = rollouts_of([prompt], tokenizer)
    (found,) = RewardModelReward(tmp_path, normalise=False, micro_batch_tokens=512)([rollout])
    ids = (*other(rollout.text).input_ids, other.eos_token_id)
    assert ids != rollout.response_ids
    with torch.no_grad():
        batch = collate([Example((*prompt.input_ids, *ids), (0,) * len(prompt.input_ids + ids))], 0)
        assert found == pytest.approx(float(sequence_scores(model, batch)), abs=1e-5)


def test_a_warm_up_that_never_ends_is_refused():
    assert ppo(steps=3, critic_warmup_steps=2).critic_warmup_steps == 2
    for warmup in (3, 4):
        with pytest.raises(ValidationError, match=rf"critic_warmup_steps={warmup} leaves none"):
            ppo(steps=3, critic_warmup_steps=warmup)


def test_a_reference_is_loaded_only_for_a_penalty(saved):
    inputs = {"policy": saved / "policy"}
    assert load_reference(ppo(kl_coef=0.0), {**inputs, "reference": saved / "policy"}) is None
    with pytest.raises(ConfigError, match=r"kl_coef=0\.02 needs the input 'reference'"):
        load_reference(ppo(), inputs)
    assert load_reference(ppo(), {**inputs, "reference": saved / "policy"}) is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"advantage": {"name": "grpo"}, "critic_warmup_steps": 1},
            "critic_warmup_steps=1, but advantage 'grpo' has no critic; set it to 0",
        ),
        (
            {"advantage": {"name": "rloo"}, "unfinished": "bootstrap"},
            "unfinished: bootstrap needs the values of a critic, and advantage 'rloo' has none",
        ),
        (
            {"dynamic_sampling": {}, "group_size": 1},
            "dynamic_sampling drops groups of equal rewards, found group_size=1; raise",
        ),
        (
            {"dynamic_sampling": {"min_mean": 1.0, "max_mean": 0.5}},
            "min_mean 1.0 is above max_mean 0.5",
        ),
        (
            {"overlong": {"buffer_tokens": 300}},
            "overlong.buffer_tokens=300 is above rollouts.max_response_tokens=256; lower it",
        ),
        (
            {"policy_loss": {"name": "gspo"}, "aggregation": "token_mean"},
            "policy_loss 'gspo' has one ratio per response, so its aggregation is sequence_mean",
        ),
        (
            {"correction": {"name": "icepop"}, "old_logprobs": "sampler"},
            "old_logprobs: sampler does not compute the former; remove one of the two",
        ),
        (
            {"old_logprobs": "update", "updates_per_step": 2},
            "old_logprobs: update is for rounds of one update, found 2 (updates_per_step",
        ),
        (
            {"kl_coef": 0.0, "kl_control": {"name": "adaptive"}},
            "kl_control: adaptive scales kl_coef, found kl_coef=0; raise it",
        ),
        ({"kl_by_ratio": True}, "kl_by_ratio is about the KL in the loss, found kl_in: reward"),
        (
            {"model": {"lora": {"load_in_4bit": True}}},
            "found dropout=0.0, load_in_4bit=True; remove both",
        ),
        (
            {"model": {"lora": {}}, "reference_reset_steps": 5},
            "cannot replace a reference that is the policy without its adapter; remove it",
        ),
        (
            {"model": {"frozen": ["model.layers.0.*"]}},
            "model.frozen and model.moe_aux_loss_coef have no effect in PPO",
        ),
        (
            {"frozen_models": {"shard": True}, "reference_reset_steps": 5},
            "gives the reference other weights, which frozen_models.shard has divided",
        ),
        (
            {"kl_coef": 0.0, "reference_reset_steps": 5},
            "reference_reset_steps needs a reference, found kl_coef=0",
        ),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_the_way_out(changes, why):
    with pytest.raises(ValidationError, match=re.escape(why)):
        ppo(**changes)


@pytest.mark.parametrize(
    ("advantage", "loss", "aggregation"),
    [
        ("gae", "ppo_clip", "token_mean"),
        ("grpo", "cispo", "token_mean"),
        ("dr_grpo", "ppo_clip", "constant_length"),
        ("grpo", "sapo", "sequence_mean"),
        ("grpo", "gspo", "sequence_mean"),
        ("dr_grpo", "gmpo", "sequence_mean"),
    ],
)
def test_the_aggregation_belongs_to_the_algorithm_unless_it_is_set(advantage, loss, aggregation):
    blocks = {"advantage": {"name": advantage}, "policy_loss": {"name": loss}}
    assert ppo(**blocks).aggregation == aggregation
    if not ppo(**blocks).policy_loss.is_of_sequence:
        assert ppo(**blocks, aggregation="sequence_sum_mean").aggregation == "sequence_sum_mean"
