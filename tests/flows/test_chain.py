"""A lifecycle is what its preset says: which steps it has, and who gets whose output."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flows import full_rlhf, iterative_dpo, raft
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.outline import outline_of
from training_core.errors import ConfigError

CAFE = {"name": "cafe", "size": 8}
PROMPTS = {"prompts": CAFE}
SFT = {"base": {"name": "scratch"}, "data": CAFE}
MORE_SFT = {"data": CAFE}
JUDGED = {"prompts": CAFE, "reward": {"name": "cafe"}}
SCRATCH = {"name": "scratch"}
OWN_DPO = {"sft": SFT, "dpo": {"data": CAFE}}


def inputs_of(recipe: Any = full_rlhf.steps, /, **blocks: Any) -> dict[str, dict[str, str]]:
    """Step -> role -> where it comes from."""
    config = LifecycleConfig.model_validate({"name": "mine", **blocks})
    return outline_of(recipe, config).inputs


def test_sft_alone_is_a_lifecycle():
    assert inputs_of(sft=SFT) == {"sft": {}}


def test_dpo_on_ones_own_pairs_follows_sft():
    assert inputs_of(sft=SFT, dpo={"data": CAFE}, evaluation=JUDGED) == {
        "sft": {},
        "dpo": {"policy": "sft", "reference": "sft"},
        "evaluation": {"policy": "dpo", "baseline": "sft"},
    }


def test_a_given_policy_starts_a_lifecycle_of_reward_model_and_ppo():
    found = inputs_of(
        given={"sft": "Qwen/Qwen2.5-0.5B-Instruct"}, reward_model={"data": CAFE}, ppo=PROMPTS
    )
    assert found == {
        "sft": {},
        "reward_model": {"policy": "sft"},
        "ppo": {"policy": "sft", "reference": "sft", "reward_model": "reward_model"},
    }


def test_models_of_the_registry_take_the_place_of_steps_and_are_no_steps():
    found = inputs_of(
        given={"sft": "models:/mine.policy@champion", "reward_model": "models:/x.reward-model/3"},
        ppo=PROMPTS,
    )
    assert found == {"ppo": {"policy": "sft", "reference": "sft", "reward_model": "reward_model"}}


def test_steps_of_ones_own_follow_each_other():
    found = inputs_of(
        steps={
            "chat": {"sft": SFT},
            "maths": {"sft": MORE_SFT},
            "best": {"rejection_sampling": JUDGED},
            "imitate": {"sft": {}},
            "prefer": {"dpo": {"data": CAFE}},
        },
        inputs={"prefer": {"reference": "chat"}},
        evaluation=JUDGED,
    )
    assert found == {
        "chat": {},
        "maths": {"policy": "chat"},
        "best": {"policy": "maths"},
        "imitate": {"policy": "maths", "dataset": "best"},
        "prefer": {"policy": "imitate", "reference": "chat"},
        "evaluation": {
            "policy": "prefer", "baseline": "chat",
            "policy_maths": "maths", "policy_imitate": "imitate",
        },
    }  # fmt: skip


def test_a_named_model_is_taken_only_where_it_is_named():
    found = inputs_of(
        sft=SFT,
        given={"teacher": "./teacher"},
        distillation={"data": CAFE},
        inputs={"distillation": {"teacher": "teacher"}},
    )
    assert found == {
        "sft": {},
        "teacher": {},
        "distillation": {"policy": "sft", "teacher": "teacher"},
    }


def test_an_input_can_be_left_out():
    found = inputs_of(
        given={"sft": "./policy", "reward_model": "./judge"},
        ppo={**PROMPTS, "reward": {"name": "cafe"}, "kl_coef": 0.0},
        inputs={"ppo": {"reward_model": None, "reference": None}},
    )
    assert found["ppo"] == {"policy": "sft"}


def test_inputs_of_a_block_hold_for_each_of_its_rounds():
    config = load_config(
        "tiny", {"iterative_dpo": {"rounds": 2}, "inputs": {"dpo": {"reference": "sft"}}}
    )
    found = outline_of(full_rlhf.steps, config).inputs
    assert [found[step]["reference"] for step in ("dpo_1", "dpo_2")] == ["sft", "sft"]
    assert [found[step]["policy"] for step in ("dpo_1", "dpo_2")] == ["rejection_sft", "dpo_1"]


def test_the_shipped_lifecycle_is_wired_as_ever():
    assert outline_of(full_rlhf.steps, load_config("tiny")).inputs == {
        "sft": {},
        "reward_model": {"policy": "sft"},
        "rejection_sampling": {"policy": "sft", "reward_model": "reward_model"},
        "rejection_sft": {"policy": "sft", "dataset": "rejection_sampling"},
        "preference_pairs_1": {"policy": "rejection_sft", "reward_model": "reward_model"},
        "dpo_1": {
            "policy": "rejection_sft", "reference": "rejection_sft",
            "dataset": "preference_pairs_1",
        },
        "ppo": {"policy": "dpo_1", "reference": "dpo_1", "reward_model": "reward_model"},
        "evaluation": {
            "policy": "ppo", "baseline": "sft", "reward_model": "reward_model",
            "policy_rejection_sft": "rejection_sft", "policy_dpo_1": "dpo_1",
        },
    }  # fmt: skip


def test_a_child_preset_unsets_what_its_base_has(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "name: base\nsft: {base: {name: scratch}, data: {name: cafe, size: 8}}\nsteps:\n"
        "  a: {sft: {data: {name: cafe, size: 8}}}\n  b: {dpo: {data: {name: cafe, size: 8}}}\n"
    )
    child = tmp_path / "child.yaml"
    child.write_text(
        "base: ./base.yaml\nname: child\nsft: ~\ngiven: {sft: ./mine}\nsteps: {a: ~}\n"
    )
    config = load_config(str(child))
    assert outline_of(full_rlhf.steps, config).inputs == {
        "sft": {},
        "b": {"policy": "sft", "reference": "sft"},
    }
    assert config.given["sft"].model.path == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ({}, "the preset mine has no step; add a block, e.g. `sft`, or `steps`"),
        ({"sft": MORE_SFT}, "sft.base is not set, and no step before it makes a policy; set it"),
        (
            {"sft": {"base": SCRATCH}},
            "sft.data is not set, and no step before it makes demonstrations; set it",
        ),
        ({"sft": SFT, "dpo": {}}, "dpo.data is not set, and no step before it makes preferences"),
        (
            {"sft": SFT, "preference_pairs": JUDGED, "dpo": {"data": CAFE}},
            "dpo.data is set, but step 'preference_pairs_1' gives it, too; remove one of the two",
        ),
        (
            {"sft": SFT, "feedback": JUDGED, "reward_model": {"data": CAFE}},
            "reward_model.data is set, but step 'feedback' gives it, too; remove one of the two",
        ),
        (
            {"sft": SFT, "ppo": PROMPTS},
            "ppo.reward is the reward model of this lifecycle, and there is none; add the block",
        ),
        (
            {"dpo": {"data": CAFE}},
            "step 'dpo' needs a policy, and no step before it gives one; add such a step",
        ),
        (
            {"sft": SFT, "distillation": {"data": CAFE}},
            "step 'distillation' needs a policy as teacher, and no step before it gives one",
        ),
        (
            {**OWN_DPO, "inputs": {"dop": {"policy": "sft"}}},
            "inputs.dop: there is no such step; did you mean 'dpo'?",
        ),
        (
            {**OWN_DPO, "inputs": {"dpo": {"polcy": "sft"}}},
            "inputs.dpo: stage 'dpo' takes no input 'polcy'; did you mean 'policy'?",
        ),
        (
            {**OWN_DPO, "inputs": {"dpo": {"policy": "sftt"}}},
            "inputs.dpo.policy: there is no earlier step and no given model 'sftt'; did you mean",
        ),
        (
            {**OWN_DPO, "inputs": {"dpo": {"policy": "dpo"}}},
            "inputs.dpo.policy: step 'dpo' does not come before 'dpo', so its output is not there",
        ),
        (
            {
                "steps": {"a": {"sft": SFT}, "b": {"sft": MORE_SFT}, "c": {"dpo": {"data": CAFE}}},
                "inputs": {"b": {"policy": "c"}},
            },
            "inputs.b.policy: step 'c' does not come before 'b', so its output is not there yet",
        ),
        (
            {"sft": SFT, "reward_model": {"data": CAFE}, "dpo": {"data": CAFE},
             "inputs": {"dpo": {"policy": "reward_model"}}},
            "inputs.dpo.policy: expected a policy, found the reward_model of step 'reward_model'",
        ),
        (
            {"sft": SFT, "steps": {"b": {"sft": {"base": SCRATCH, "data": CAFE}}},
             "inputs": {"b": {"policy": "sft"}}},
            "b.base is set, but step 'sft' gives it, too; remove one of the two",
        ),
        (
            {"sft": SFT, "evaluation": JUDGED},
            "evaluation: expected two policies, the newest and an earlier one, found sft; remove",
        ),
    ],
)  # fmt: skip
def test_a_step_that_does_not_get_what_it_needs_is_refused(blocks, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        inputs_of(**blocks)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (raft.steps, "the flow raft needs the block rejection_sampling and rejection_sft, and the"),
        (iterative_dpo.steps, "the flow iterative-dpo needs the block preference_pairs and dpo"),
    ],
)
def test_a_flow_without_the_blocks_that_make_it_is_refused(steps, why):
    with pytest.raises(ConfigError, match=why):
        inputs_of(steps, sft=SFT)


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ({"sft": SFT, "given": {"sft": "a/b"}}, "given.sft takes the place of the block `sft`"),
        ({"steps": {"sft": {"dpo": {}}}}, "steps.sft: there is a block or a given model"),
        ({"steps": {"a": {}}}, "expected one stage with its config, e.g. `sft:"),
        ({"steps": {"a": {"sft": {}, "dpo": {}}}}, "found dpo and sft"),
        ({"steps": {"a b": {"sft": {}}}}, "expected letters, digits"),
        ({"given": {"a": "models:/x"}}, "String should match pattern"),
        ({"given": {"a": "a//b"}}, "expected an id of the Hugging Face hub"),
    ],
)  # fmt: skip
def test_names_and_places_that_are_wrong_are_refused(blocks, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        LifecycleConfig.model_validate({"name": "mine", **blocks})


@pytest.mark.parametrize(
    ("text", "name", "where"),
    [
        ("models:/mine.policy@champion", "registered", "models:/mine.policy@champion"),
        ("models:/mine.policy/7", "registered", "models:/mine.policy/7"),
        ("./out/artifact", "local", "./out/artifact"),
        ("/models/mine", "local", "/models/mine"),
        ("Qwen/Qwen2.5-0.5B", "hub", "Qwen/Qwen2.5-0.5B"),
        ("gpt2", "hub", "gpt2"),
    ],
)
def test_a_text_says_where_a_given_model_is(text, name, where):
    config = LifecycleConfig.model_validate({"name": "mine", "given": {"a": text}})
    model = config.given["a"].model.model_dump()
    assert model["name"] == name
    assert where in model.values()
