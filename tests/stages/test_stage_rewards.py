"""The table of rewards, and what a stage does with each kind."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from flows.config.presets import load_config
from stages.catalog import STAGES
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.model_config import LocalModelConfig
from stages.configs.reward_config import (
    CafeRewardConfig,
    CombinedRewardConfig,
    ExternalRewardModelRewardConfig,
    RewardConfig,
    RewardModelRewardConfig,
    WeightedRewardConfig,
)
from stages.configs.reward_service_config import HttpRewardConfig, LlmJudgeRewardConfig
from stages.runtime.sources import digests_of_sources, pin_revisions, resolve_paths
from stages.runtime.stage_key import semantic_part, stage_key
from stages.sampling.rewards import REWARDS, WAITING, build_reward
from tests.http_server import serving
from training_core.data.chat import encode_prompt
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.rewards.functions import cafe_reward
from training_core.rewards.model_reward import RewardModelReward
from training_core.rewards.reward import Scored
from training_core.types import Prompt, Rollout


def members() -> tuple[type[BaseModel], ...]:
    return get_args(get_args(RewardConfig)[0])


def test_every_reward_of_the_union_has_its_row_and_every_row_its_block():
    assert {block.model_fields["name"].default for block in members()} == set(REWARDS)


def test_a_reward_is_built_by_its_row():
    assert build_reward(CafeRewardConfig(), {}) is cafe_reward


def test_services_of_several_parts_are_asked_at_once():
    all_asked = asyncio.Barrier(2)  # asked one after the other, they would never meet

    async def endpoint(request):
        await all_asked.wait()
        length = float(len(request.url.path))
        return JSONResponse({"rewards": [length] * len((await request.json())["query"])})

    with serving(Starlette(routes=[Route("/{path}", endpoint, methods=["POST"])])) as url:
        services = {"a": f"{url}/1", "b": f"{url}/123"}
        parts = [
            {"label": label, "reward": {"name": "http", "url": at, "retries": 0}}
            for label, at in services.items()
        ]
        config = WeightedRewardConfig.model_validate({"name": "weighted", "parts": parts})
        prompt = Prompt("1", ({"role": "user", "content": "two tea"},), "", (1,))
        rollouts = [Rollout(prompt, (5,), (0.0,), "two tea .", True, 0)]
        assert build_reward(config, {})(rollouts) == [Scored(6.0, {"a": 2.0, "b": 4.0})]
    assert set(REWARDS) >= WAITING


def test_a_reward_model_from_elsewhere_gives_its_raw_scores(tmp_path, make_scalar_model, tokenizer):
    model = make_scalar_model()
    model.config.reward_mean, model.config.reward_std = 2.0, 4.0
    hub.save(model, tokenizer, tmp_path)
    source = LocalModelConfig(path=str(tmp_path))
    reward = build_reward(ExternalRewardModelRewardConfig(model=source), {})
    prompt = encode_prompt(tokenizer, "1", [{"role": "user", "content": "two tea please"}])
    ids = tuple(tokenizer("two tea .").input_ids)
    rollouts = [Rollout(prompt, ids, (0.0,) * len(ids), "two tea .", False, 0)]
    same = RewardModelReward(tmp_path, normalise=False, micro_batch_tokens=64)
    assert reward(rollouts) == same(rollouts)


def test_a_model_that_is_no_reward_model_is_refused(
    tmp_path, make_policy, make_scalar_model, tokenizer
):
    config = ExternalRewardModelRewardConfig(model=LocalModelConfig(path=str(tmp_path)))
    hub.save(make_policy(), tokenizer, tmp_path)
    with pytest.raises(DataError, match="found a model whose head is zero or missing"):
        build_reward(config, {})
    without = copy.deepcopy(tokenizer)
    without.chat_template = None
    (tmp_path / "chat_template.jinja").unlink()
    hub.save(make_scalar_model(), without, tmp_path)
    with pytest.raises(ConfigError, match="has no chat template"):
        build_reward(config, {})


def test_the_commit_of_a_judge_on_the_hub_is_resolved_and_part_of_the_key():
    model = {"name": "hub", "repo": "someone/judge"}
    reward = {"name": "external_reward_model", "model": model}
    config = EvaluationConfig.model_validate({"prompts": {"name": "cafe"}, "reward": reward})
    pinned = pin_revisions(config, lambda kind, repo, revision: f"{kind}:{repo}@{revision}")
    assert pinned.reward.model.revision == "model:someone/judge@main"
    assert stage_key(STAGES["evaluation"], pinned, {}) != stage_key(
        STAGES["evaluation"], config, {}
    )


def test_the_reward_model_is_asked_for_where_the_graph_gives_none():
    with pytest.raises(ConfigError, match="needs a reward model as input"):
        build_reward(RewardModelRewardConfig(), {})


def finished(text="two tea ."):
    prompt = Prompt("1", ({"role": "user", "content": "two tea please"},), "", (1, 2))
    return Rollout(prompt, (5, 2), (-1.0, -1.0), text, is_finished=True, policy_version=0)


def function_file(folder, text):
    (folder / "own.py").write_text(text)
    return f"{folder}/own.py:f"


def test_a_sum_of_rewards_is_built_from_the_table(tmp_path):
    path = function_file(tmp_path, "def f(rollout): return len(rollout.text)")
    parts = [
        {"reward": {"name": "cafe"}, "weight": 10.0},
        {"reward": {"name": "python", "path": path}, "label": "length", "weight": -1.0},
    ]
    config = WeightedRewardConfig.model_validate({"parts": parts})
    cafe = cafe_reward([finished()])[0]
    (found,) = build_reward(config, {})([finished()])
    assert found == Scored(pytest.approx(10 * cafe - 9), {"cafe": cafe, "length": 9.0})


def test_a_function_of_rewards_is_built_from_the_table_and_its_source_is_part_of_the_key(tmp_path):
    function_file(tmp_path, "def f(rollout, values, power): return values['cafe'] ** power")
    config = CombinedRewardConfig.model_validate(
        {
            "path": "own.py:f",
            "arguments": {"power": 2},
            "parts": [{"reward": {"name": "cafe"}}],
        }
    )
    config = resolve_paths(config, tmp_path)
    cafe = cafe_reward([finished()])[0]
    assert build_reward(config, {})([finished()]) == [Scored(cafe**2, {"cafe": cafe})]
    before = digests_of_sources(config)
    function_file(tmp_path, "def f(rollout, values, power): return 0")
    assert set(before) == {"path"}
    assert digests_of_sources(config) != before
    function_file(tmp_path, "def f(rollout): return 0")
    with pytest.raises(ConfigError, match="cannot be called with a rollout and the values of its"):
        build_reward(config, {})


def test_a_part_reads_its_own_files(tmp_path):
    part = {"reward": {"name": "lexicon", "path": "words.jsonl"}}
    config = resolve_paths(WeightedRewardConfig.model_validate({"parts": [part]}), tmp_path)
    (tmp_path / "words.jsonl").write_text('{"token": "tea", "mean": 1.0}\n')
    assert set(digests_of_sources(config)) == {"parts.0.reward.path"}
    (found,) = build_reward(config, {})([finished("tea")])
    assert found == Scored(0.25, {"lexicon": 0.25})  # 1 / sqrt(1 + 15)


def test_parts_with_the_same_label_are_refused():
    parts = [{"reward": {"name": "cafe"}}, {"reward": {"name": "cafe"}}]
    with pytest.raises(ValidationError, match="found 'cafe' twice; set `label`"):
        WeightedRewardConfig.model_validate({"parts": parts})
    with pytest.raises(ValidationError, match="found 'cafe' twice; set `label`"):
        CombinedRewardConfig.model_validate({"path": "a.py:f", "parts": parts})
    parts[1]["label"] = "again"
    assert len(WeightedRewardConfig.model_validate({"parts": parts}).parts) == 2


ADDRESS = {"url": "http://rewards:5010/get_reward"}
JUDGE = {"url": "https://judges/v1", "model_name": "judge-1"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("rewards:5010", "url: expected an address, e.g. http://host:5010/get_reward"),
        ("ftp://rewards", "url: expected an address"),
        ("http://", "url: expected an address"),
        ("http://rewards:99999", "url: expected an address"),
        ("http://rewards/a b", "url: expected an address"),
        ("http://me:sesame@rewards/", "expected an address without login"),
        ("http://rewards/?token=sesame", "expected an address without login"),
        ("http://me:sesame@rewards:99999/", "url: expected an address"),
    ],
)
def test_an_address_in_a_config_has_no_secret_and_an_error_does_not_show_it(url, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config("tiny", {"ppo": {"reward": {"name": "http", "url": url}}})
    assert "sesame" not in str(caught.value)


def test_the_token_is_read_from_its_variable_and_asked_for_before_anything_is_scored(monkeypatch):
    config = HttpRewardConfig(token_variable="NO_SUCH_TOKEN", **ADDRESS)
    with pytest.raises(ConfigError, match="token_variable names NO_SUCH_TOKEN, which is not set"):
        build_reward(config, {})
    monkeypatch.setenv("NO_SUCH_TOKEN", "se same")
    with pytest.raises(ConfigError, match="has characters that a header cannot have") as caught:
        build_reward(config, {})
    assert "se same" not in str(caught.value)
    monkeypatch.setenv("NO_SUCH_TOKEN", "sesame")
    assert callable(build_reward(config, {}))


@pytest.mark.parametrize("field", ["token_variable", "timeout_seconds", "batch_size", "retries"])
def test_how_a_service_is_asked_is_not_part_of_the_key_but_what_it_is(field):
    changed = {"token_variable": "T", "timeout_seconds": 1.0, "batch_size": 1, "retries": 0}[field]
    plain = HttpRewardConfig(**ADDRESS)
    assert semantic_part(HttpRewardConfig(**ADDRESS, **{field: changed})) == semantic_part(plain)
    assert semantic_part(HttpRewardConfig(**ADDRESS, version="2")) != semantic_part(plain)
    assert semantic_part(HttpRewardConfig(url="http://x")) != semantic_part(plain)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": "{prompt}"}, "template: expected {response}; add it"),
        ({"template": "{response} {respons}"}, "template: unknown {respons}; known are {high}, "),
        ({"template": "{response} {label}"}, "the field {label} of template and label_column need"),
        ({"label_column": "gold"}, "the field {label} of template and label_column need"),
        ({"low": 1.0, "high": 1.0}, "expected low < high, found 1 and 1"),
        ({"cache_dir": "relative"}, "cache_dir"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(fields, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        LlmJudgeRewardConfig.model_validate({**JUDGE, **fields})


def test_braces_of_json_in_a_template_are_no_fields():
    template = 'Say {"score": 1}. {response}'
    assert LlmJudgeRewardConfig(**JUDGE, template=template).template == template
