"""Which rewards may decide a promotion, and which evaluations have the same prompts."""

import pytest

from flows.config.presets import load_config, preset_names
from flows.recipe.judging_rules import digest_of_prompts, sources_of_prompts, uses_of_judge

PUBLIC = {
    "name": "external_reward_model",
    "model": {"name": "hub", "repo": "someone/judge", "revision": "a" * 40},
}


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_has_an_independent_judge(preset):
    assert uses_of_judge(load_config(preset)) == ""


def test_the_reward_model_that_steps_optimise_is_no_judge():
    config = load_config("tiny", {"evaluation": {"reward": {"name": "reward_model"}}})
    assert uses_of_judge(config) == (
        "the reward model of rejection_sampling.reward, preference_pairs.reward, ppo.reward"
    )


def test_a_reward_model_from_elsewhere_is_a_judge_until_a_step_optimises_it():
    evaluation = {"evaluation": {"reward": PUBLIC}}
    assert uses_of_judge(load_config("tiny", evaluation)) == ""
    # another revision is still the same model
    trained_on = {**PUBLIC, "model": {**PUBLIC["model"], "revision": "b" * 40}}
    config = load_config("tiny", {**evaluation, "ppo": {"reward": trained_on}})
    assert uses_of_judge(config) == "the reward model of ppo.reward"
    other = {**PUBLIC, "model": {**PUBLIC["model"], "repo": "someone/else"}}
    assert uses_of_judge(load_config("tiny", {**evaluation, "ppo": {"reward": other}})) == ""


def test_a_judge_in_a_sum_is_found_on_both_sides():
    together = {"name": "weighted", "parts": [{"reward": PUBLIC}, {"reward": {"name": "cafe"}}]}
    for judge, optimised in ((PUBLIC, together), (together, PUBLIC), (together, together)):
        blocks = {"evaluation": {"reward": judge}, "ppo": {"reward": optimised}}
        assert uses_of_judge(load_config("tiny", blocks)) == "the reward model of ppo.reward"
    others = {"name": "weighted", "parts": [{"reward": {"name": "cafe"}}]}
    blocks = {"evaluation": {"reward": others}, "ppo": {"reward": together}}
    assert uses_of_judge(load_config("tiny", blocks)) == ""


def test_a_service_counts_as_learned_because_nobody_knows_what_it_computes():
    here = {"name": "http", "url": "http://rewards:5010/get_reward"}
    blocks = {"evaluation": {"reward": here}, "ppo": {"reward": {**here, "batch_size": 4}}}
    assert uses_of_judge(load_config("tiny", blocks)) == "the reward model of ppo.reward"
    blocks["ppo"] = {"reward": {**here, "url": "http://rewards:5011/get_reward"}}
    assert uses_of_judge(load_config("tiny", blocks)) == ""


@pytest.mark.parametrize("judge", ["llm_judge", "llm_pairwise"])
def test_a_language_model_judges_until_a_step_optimises_its_scores(judge):
    model = {"url": "http://judges:8000/v1", "model_name": "judge-1"}
    blocks = {"evaluation": {"reward": {"name": judge, **model}}}
    assert uses_of_judge(load_config("tiny", blocks)) == ""
    blocks["ppo"] = {"reward": {"name": "llm_judge", **model, "high": 5.0}}
    assert uses_of_judge(load_config("tiny", blocks)) == "the reward model of ppo.reward"
    blocks["ppo"] = {"reward": {"name": "llm_judge", **model, "model_name": "judge-2"}}
    assert uses_of_judge(load_config("tiny", blocks)) == ""


def test_a_reward_that_is_the_goal_itself_may_be_optimised_and_judge():
    config = load_config("tiny", {"ppo": {"reward": {"name": "cafe"}}})
    assert config.evaluation.reward.name == "cafe"
    assert uses_of_judge(config) == ""


def test_prompts_are_the_same_as_long_as_their_source_and_its_content_are(tmp_path):
    file = tmp_path / "a.jsonl"

    def digest(**evaluation):
        prompts = {"name": "files", "path": str(file)}
        config = load_config("tiny", {"evaluation": {"prompts": prompts, **evaluation}})
        return digest_of_prompts(config.evaluation)

    file.write_text('{"prompt": "one tea"}\n')
    first = digest()
    # Another seed, judge or number of responses is no fresh start for the attempts.
    assert digest(seed=3, responses_per_prompt=2, reward={"name": "reward_model"}) == first
    assert digest(exclude={"name": "cafe"}) != first
    file.write_text('{"prompt": "two tea"}\n')
    assert digest() != first


def test_a_prompt_is_from_its_source_column_or_else_from_its_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1?", "source": "gsm8k"}\n{"prompt": "2?"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "3?"}\n')
    files = {"name": "files", "path": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]}
    config = load_config("tiny", {"evaluation": {"prompts": files}})
    assert config.evaluation is not None
    found = sources_of_prompts(config.evaluation)
    assert found == {"1": "gsm8k", "2": "a.jsonl", "3": "b.jsonl"}
    config = load_config("tiny", {"evaluation": {"prompts": {"size": 2}}})
    assert config.evaluation is not None
    assert sources_of_prompts(config.evaluation) == {"1": "cafe", "2": "cafe"}
