"""Models that were trained elsewhere, as the first steps of a lifecycle."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from stages import given_policy, given_reward_model
from stages.attempt import Attempt
from stages.configs.given_policy_config import GivenPolicyConfig
from stages.configs.given_reward_model_config import GivenRewardModelConfig
from stages.contract import Context
from stages.runtime.metric_files import FileSink
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.models.parts import scalar_head


def taken(stage: Any, config: Any, folder: Path) -> Path:
    attempt = Attempt(folder / "a1")
    attempt.directory.mkdir()
    stage.run(config, {}, Context(attempt, FileSink(attempt, "given")))
    return attempt.artifact


def place(folder: Path) -> dict[str, str]:
    return {"name": "local", "path": str(folder)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_given_policy_keeps_its_weights_and_its_dtype(dtype, make_policy, tokenizer, tmp_path):
    policy = make_policy().to(dtype)
    hub.save(policy, tokenizer, tmp_path / "mine")
    config = GivenPolicyConfig(model=place(tmp_path / "mine"))  # pyright: ignore[reportArgumentType]
    made = taken(given_policy, config, tmp_path)
    assert hub.recorded_dtype(made) == dtype
    copy = hub.load_policy(made, dtype=dtype)
    for name, weight in policy.state_dict().items():
        assert torch.equal(copy.state_dict()[name], weight), name
    assert hub.load_tokenizer(made).chat_template == tokenizer.chat_template


def test_a_given_policy_gets_the_template_that_its_tokenizer_lacks(
    make_policy, tokenizer, tmp_path
):
    without = copy.deepcopy(tokenizer)
    without.chat_template = None
    hub.save(make_policy(), without, tmp_path / "mine")
    model = place(tmp_path / "mine")
    with pytest.raises(ConfigError, match="chat_template"):
        taken(given_policy, GivenPolicyConfig.model_validate({"model": model}), tmp_path)
    (tmp_path / "again").mkdir()
    config = GivenPolicyConfig.model_validate({"model": model, "chat_template": "Q: {}\nA: "})
    made = taken(given_policy, config, tmp_path / "again")
    text = hub.load_tokenizer(made).apply_chat_template(
        [{"role": "user", "content": "tea?"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("Q: tea?\nA: ")
    with pytest.raises(ValidationError, match="chat_template"):
        GivenPolicyConfig.model_validate({"model": model, "chat_template": "no placeholder"})


def test_a_given_reward_model_scores_as_before(make_policy, tokenizer, tmp_path):
    hub.save(make_policy(), tokenizer, tmp_path / "policy")
    judge = hub.load_scalar_model(tmp_path / "policy")
    with torch.no_grad():
        scalar_head(judge).weight.normal_(generator=torch.Generator().manual_seed(1))
    hub.save(judge, tokenizer, tmp_path / "judge")
    config = GivenRewardModelConfig.model_validate({"model": place(tmp_path / "judge")})
    copy = hub.load_scalar_model(taken(given_reward_model, config, tmp_path))
    assert torch.equal(scalar_head(copy).weight, scalar_head(judge).weight)


def test_a_policy_is_no_reward_model(make_policy, tokenizer, tmp_path):
    hub.save(make_policy(), tokenizer, tmp_path / "policy")
    config = GivenRewardModelConfig.model_validate({"model": place(tmp_path / "policy")})
    with pytest.raises(DataError, match="has no trained head, so each score would be 0; expected"):
        taken(given_reward_model, config, tmp_path)
