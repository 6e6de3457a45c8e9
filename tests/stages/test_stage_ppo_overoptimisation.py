"""A judge beside the reward that PPO optimises: the alarm, the stop, and the artifact."""

import logging
from functools import partial

import numpy as np
import pytest
from pydantic import ValidationError

from stages.configs.ppo_config import PpoConfig
from stages.files import read_jsonl
from stages.reinforcement.overoptimisation import JudgedPolicy, Overoptimisation, have_parted
from stages.sampling.intervals import LEVEL
from tests.stages.test_stage_ppo_evaluation import (
    are_equal,
    held_out,
    measured,
    run,
    start,
    weights,
    without_heldout,
)

__all__ = ["start"]

ROUNDS = 8

VARIETY = '''"""A judge whose values fall as one word is said again and again."""


def variety(rollout):
    """Share of different words among the response's words."""
    words = rollout.text.split()
    return len(set(words)) / max(1, len(words))
'''


def judged(done, reward, values):
    return JudgedPolicy(done, reward, {str(number): value for number, value in enumerate(values)})


# ---------------------------------------------------------------------------- the decision


def test_parting_needs_more_reward_and_a_fall_of_the_judge_beyond_noise():
    before, lower = [0.5, 0.7, 0.9, 0.6], [0.1, 0.4, 0.4, 0.2]
    # falls 0.4, 0.3, 0.5, 0.4: mean 0.4, deviation 0.0816, t = 9.8; t(3) at 97.5 % is 3.18
    then, worse = judged(0, 0.2, before), judged(2, 0.3, lower)
    assert have_parted(then, worse, evaluations=2)
    assert not have_parted(then, judged(2, 0.2, lower), evaluations=2)
    # one of 190 pairs: t(3) at 1 - 0.025 / 190 is 20.2
    assert not have_parted(then, worse, evaluations=20)


def test_prompts_that_were_not_scored_both_times_are_left_out():
    then = JudgedPolicy(0, 0.2, {"a": 0.5, "b": 0.7, "lost": 0.0})
    now = JudgedPolicy(2, 0.3, {"a": 0.1, "b": 0.31, "found": 9.0})
    assert have_parted(then, now, evaluations=2)
    assert not have_parted(then, JudgedPolicy(2, 0.3, {"found": 0.0}), evaluations=2)


@pytest.mark.parametrize(("evaluations", "prompts"), [(3, 8), (11, 32), (41, 16)])
def test_at_most_one_run_in_forty_has_a_false_alarm_however_often_it_looks(evaluations, prompts):
    random = np.random.default_rng(evaluations)
    runs, alarms = 600, 0
    for _ in range(runs):
        of_prompt = random.normal(size=prompts)
        watch = Overoptimisation(evaluations, stops=False)
        for number in range(evaluations):
            values = of_prompt + random.normal(size=prompts)  # the same policy, sampled again
            watch.takes(judged(number, float(number), values.tolist()))
        alarms += watch.parted_at is not None
    assert alarms / runs <= LEVEL + 3 * (LEVEL * (1 - LEVEL) / runs) ** 0.5


def test_a_fall_by_a_deviation_is_found_on_sixty_four_prompts():
    random = np.random.default_rng(5)
    found = 0
    for _ in range(100):
        watch = Overoptimisation(11, stops=False)
        for number in range(11):
            fall = 0.0 if number < 6 else 1.0
            values = random.normal(size=64) - fall
            watch.takes(judged(number, float(number), values.tolist()))
        found += watch.parted_at is not None and watch.parted_at >= 6
    assert found >= 95


# ---------------------------------------------------------------------------- real runs


@pytest.fixture(scope="module")
def parting(start, tmp_path_factory):
    """Runs whose policy learns to say one word: reward rises, and variety falls."""
    code = tmp_path_factory.mktemp("judge") / "judge.py"
    code.write_text(VARIETY)
    reward = {"name": "python", "path": f"{code}:variety"}

    def start_one(directory, *, when_parted="warn", stop_after=None, earlier=(), **changes):
        judge = {"reward": reward, "when_parted": when_parted}
        evaluation = held_out(32, every=1, judge=judge)
        size = {"steps": ROUNDS, "prompts_per_step": 8, "group_size": 8}
        given = {**size, "evaluation": evaluation, "policy_optimizer": {"learning_rate": 3e-2}}
        return run(start, directory, stop_after=stop_after, earlier=earlier, **{**given, **changes})

    return start_one


@pytest.fixture(scope="module")
def warned(parting, tmp_path_factory):
    """The final metrics, the curve and the folder of a run that goes on after the alarm."""
    folder = tmp_path_factory.mktemp("warned") / "a1"
    return *parting(folder), folder


def test_the_artifact_is_the_policy_that_the_judge_likes_best(warned):
    final, curve, folder = warned
    by_judge, rewards = measured(curve, "heldout_judge_reward"), measured(curve)
    best = max(range(1, ROUNDS + 1), key=lambda step: (by_judge[step], -step))
    assert (final["best_step"], final["exported_step"]) == (best, best)
    assert final["heldout_judge_reward"] == by_judge[best] > by_judge[ROUNDS]
    assert rewards[ROUNDS] > rewards[best]
    assert final["heldout_judge_reward_before"] == by_judge[0]
    assert (folder / "artifact/model.safetensors").exists()


def test_the_alarm_names_where_they_parted_and_by_how_much(parting, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="stages.reinforcement.overoptimisation"):
        final, curve = parting(tmp_path / "a1")
    parted = [step for step, found in measured(curve, "heldout_parted").items() if found]
    assert final["parted_step"] == parted[0] > 0
    (alarm,) = (each for each in caplog.messages if each.startswith("over-optimisation"))
    assert f"to round {parted[0]} the held-out reward rose from" in alarm
    assert "the judge's fell from" in alarm


def test_with_stop_the_training_ends_there_with_the_same_weights(parting, warned, tmp_path):
    longer, curve, folder = warned
    final, shorter = parting(tmp_path / "a1", when_parted="stop")
    parted = int(longer["parted_step"])
    assert parted < ROUNDS
    assert [p["step"] for p in shorter] == [*range(parted + 1)]
    assert without_heldout(shorter) == without_heldout(curve)[:parted]
    assert final["parted_step"] == parted
    assert final["exported_step"] == final["best_step"]
    if longer["best_step"] < parted:
        assert are_equal(weights(folder / "artifact"), weights(tmp_path / "a1/artifact"))


@pytest.mark.parametrize("after", ["the first round", "the alarm"])
def test_a_killed_run_ends_at_the_same_round(parting, warned, tmp_path, after):
    rounds = 1 if after == "the first round" else int(warned[0]["parted_step"])
    given = partial(parting, when_parted="stop")
    final, whole = given(tmp_path / "a0")
    given(tmp_path / "a1", stop_after=rounds)
    again, resumed = given(tmp_path / "a2", earlier=[tmp_path / "a1"])
    assert again == final
    assert measured(resumed) == measured(whole)
    assert are_equal(weights(tmp_path / "a2/artifact"), weights(tmp_path / "a0/artifact"))


def test_the_distance_is_that_of_the_evaluated_policy(parting, tmp_path):
    _, curve = parting(tmp_path / "a1", kl_coef=0.01, steps=3)
    distances = measured(curve, "heldout_kl")
    assert distances[0] == pytest.approx(0.0, abs=1e-5)
    assert distances[3] > 0.05
    rows = read_jsonl(tmp_path / "a1/metrics.jsonl")
    trained = {p["step"]: p["metrics"].get("ppo/kl") for p in rows}
    # a round samples before its update: from the policy that was evaluated after the round before
    assert distances[2] == pytest.approx(trained[3], rel=0.5)


# ---------------------------------------------------------------------------- its config


def config(**changes):
    evaluation = held_out(8, **changes)
    given = {"prompts": {"name": "cafe", "size": 8}, "reward": {"name": "cafe"}}
    return PpoConfig.model_validate({**given, "steps": 10, "evaluation": evaluation})


def test_checkpoints_are_compared_by_the_judge_unless_the_config_says_otherwise():
    length = {"reward": {"name": "length", "free_tokens": 4, "max_tokens": 8}}
    assert config().evaluation.best_metric == "heldout_reward"
    assert config(judge=length).evaluation.best_metric == "heldout_judge_reward"
    by_reward = config(judge=length, best_metric="heldout_reward")
    assert by_reward.evaluation.best_metric == "heldout_reward"
    with pytest.raises(ValidationError, match="no metric 'heldout_judge_reward' is measured"):
        config(best_metric="heldout_judge_reward")


def test_a_judge_that_is_optimised_is_refused():
    with pytest.raises(ValidationError, match="is not optimised for, found 'cafe', which `reward`"):
        config(judge={"reward": {"name": "cafe"}})
