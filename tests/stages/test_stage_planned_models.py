"""Model options and lengths of all steps are compared with the base model before it is loaded."""

import pytest

from stages.configs.dpo_config import DpoConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from stages.data_check.planned_models import problems_of_models
from training_core.errors import DataError
from training_core.models import hub

SCRATCH = {"base": {"name": "scratch"}, "training": {"max_tokens": 96}}
SHORT = {"training": {"max_tokens": 96}}


def problems(sft=SCRATCH, **steps):
    config = SftConfig.model_validate(sft)
    return list(problems_of_models(config, {"sft": config, **steps}))


@pytest.mark.parametrize(
    ("config", "frozen", "why"),
    [
        (DpoConfig, ["model.layer.*"], "'model.layer.*' matches no parameter; expected a pattern"),
        (DpoConfig, ["model.*"], "leaves none of 20 parameters to train; remove a pattern"),
        (RewardModelConfig, ["lm_head.*"], "'lm_head.*' matches no parameter"),
        (RewardModelConfig, ["model.*", "score.*"], "leaves none of"),
        (ProcessRewardConfig, ["model.*", "score.*"], "leaves none of"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_found(config, frozen, why):
    ((where, text),) = problems(step=config.model_validate({**SHORT, "model": {"frozen": frozen}}))
    assert where == "step.model"
    assert why in text


@pytest.mark.parametrize("config", [DpoConfig, RewardModelConfig, ProcessRewardConfig])
@pytest.mark.parametrize(
    "model",
    [{"frozen": ["model.layers.0.*"]}, {"lora": {}}, {"lora": {"target_modules": ["q_proj"]}}],
    ids=["frozen", "lora", "targets"],
)
def test_patterns_and_adapters_that_fit_are_no_problem(config, model):
    assert problems(step=config.model_validate({**SHORT, "model": model})) == []


def test_an_adapter_without_a_place_is_found():
    lora = {"target_modules": ["query"]}
    found = problems(dpo=DpoConfig.model_validate({**SHORT, "model": {"lora": lora}}))
    assert [where for where, _ in found] == ["dpo.model"]
    assert "does not fit LlamaForCausalLM" in found[0][1]
    short = {"rollouts": {"max_tokens": 96, "max_response_tokens": 9}}
    ppo = {"prompts": {"name": "cafe"}, **short, "model": {"lora": lora}}
    ((where, text),) = problems(ppo=PpoConfig.model_validate(ppo))
    assert where == "ppo.model"
    assert "does not fit LlamaForCausalLM" in text


def test_4_bits_without_their_package_are_found(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lora = {"load_in_4bit": True}
    ((where, text),) = problems(dpo=DpoConfig.model_validate({**SHORT, "model": {"lora": lora}}))
    assert where == "dpo.model"
    assert "needs the package bitsandbytes" in text


def test_sequences_longer_than_the_bases_positions_are_found(tmp_path, make_policy, tokenizer):
    prompts = {"prompts": {"name": "cafe"}}
    rollouts = {"rollouts": {"max_tokens": 97, "max_response_tokens": 9}}
    ppo = PpoConfig.model_validate({**prompts, **rollouts})
    dpo = DpoConfig.model_validate({"training": {"max_tokens": 98}})
    assert problems(ppo=ppo, dpo=dpo) == [
        (
            "ppo.rollouts.max_tokens",
            "97 is more than the 96 positions of the base model; lower it, or raise "
            "sft.training.max_tokens",
        ),
        (
            "dpo.training.max_tokens",
            "98 is more than the 96 positions of the base model; lower it, or raise "
            "sft.training.max_tokens",
        ),
    ]
    hub.save(make_policy(), tokenizer, tmp_path)
    local = {**SHORT, "base": {"name": "local", "path": str(tmp_path)}}
    ((where, text),) = problems(local, ppo=ppo)
    assert (where, text) == (
        "ppo.rollouts.max_tokens",
        "97 is more than the 96 positions of the base model; lower it",
    )


def test_a_base_that_is_missing_is_an_error_of_the_input(tmp_path):
    with pytest.raises(DataError, match="expected the folder of a Hugging Face model"):
        problems({"base": {"name": "local", "path": str(tmp_path / "gone")}})
