"""Evaluation on held-out prompts while the stage `ppo` trains, and the artifact it selects."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages import ppo
from stages.attempt import Attempt
from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_evaluation_config import PpoEvaluationConfig
from stages.contract import Context
from stages.files import read_jsonl, write_jsonl
from stages.reinforcement.held_out import describe
from stages.runtime.metric_files import FileSink
from training_core.errors import DataError, IntegrityError, StoppedError
from training_core.models import hub

REWARD = '''"""A reward that can be verified, and one that falls as the policy learns it."""


def tea(rollout):
    """Share of a word among the response's words."""
    words = rollout.text.split()
    return words.count("tea") / max(1, len(words))


def only_in_training(rollout):
    """As `tea` on the prompts of the training, and the contrary on those of the café."""
    return tea(rollout) if rollout.prompt.columns.get("is_trained") else -tea(rollout)
'''


@pytest.fixture(scope="module")
def start(make_policy, tokenizer, tmp_path_factory) -> Path:
    """A folder with a policy of random weights and rewards."""
    folder = tmp_path_factory.mktemp("start")
    hub.save(make_policy(), tokenizer, folder / "policy")
    (folder / "reward.py").write_text(REWARD)
    return folder


def held_out(*sizes, **changes):
    labels = ("all",) if len(sizes) == 1 else ("small", "large")
    prompts = [
        {"label": label, "data": {"name": "cafe", "split": "heldout", "size": n, "seed": n}}
        for label, n in zip(labels, sizes, strict=True)
    ]
    return {"every": 2, "prompts": prompts, **changes}


def run(start, directory, *, stop_after=None, earlier=(), reward="tea", **changes):
    """Run the stage, or stop it after some rounds; return the final metrics and the curve."""
    directory.mkdir(parents=True, exist_ok=True)
    attempt = Attempt(directory)

    def should_stop():
        done = json.loads(attempt.progress.read_text())["done"]
        return stop_after is not None and done >= stop_after

    context = Context(attempt, FileSink(attempt, "ppo"), tuple(map(Attempt, earlier)), should_stop)
    plain = {
        "prompts": {"name": "cafe", "size": 16, "seed": 4},
        "reward": {"name": "python", "path": f"{start / 'reward.py'}:{reward}"},
        "rollouts": {"engine": "transformers", "max_response_tokens": 6, "max_tokens": 64},
        "steps": 4,
        "prompts_per_step": 4,
        "group_size": 4,
        "advantage": {"name": "grpo"},
        "kl_coef": 0.0,
        "policy_optimizer": {"learning_rate": 1e-2},
        "keep_checkpoints": 1,
        "save_every_steps": 1,
    }
    config = PpoConfig.model_validate({**plain, **changes})
    metrics = {}
    try:
        inputs = {"policy": start / "policy", "reference": start / "policy"}
        metrics = dict(ppo.run(config, inputs, context).metrics)
    except StoppedError:
        assert stop_after is not None
    return metrics, read_jsonl(attempt.metrics)


def weights(directory):
    return load_file(directory / "model.safetensors")


def are_equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def measured(curve, name="heldout_reward"):
    return {p["step"]: p["metrics"][f"ppo/{name}"] for p in curve if f"ppo/{name}" in p["metrics"]}


def without_heldout(curve):
    return [
        {n: v for n, v in p["metrics"].items() if "heldout" not in n and not n.endswith("_seconds")}
        for p in curve
        if p["step"] > 0
    ]


def test_rewards_and_passes_worked_out_by_hand():
    config = PpoEvaluationConfig.model_validate(
        held_out(4, samples_per_prompt=4, pass_at=[1, 2], pass_reward=0.5)
    )
    found = describe([[1.0, 0.0, 0.0, 1.0], [0.5, 0.25, 0.0, 0.25], [0.0, 0.0, 0.25]], config)
    # means of the prompts: 1/2, 1/4, 1/12; together 5/18
    assert found["heldout_reward"] == pytest.approx(5 / 18)
    # variance ((2/9)^2 + (1/36)^2 + (7/36)^2) / 2 = (64 + 1 + 49) / 1296 / 2; t(2) at 97.5 % 4.3027
    half = 4.302653 * math.sqrt(114 / 1296 / 2 / 3)
    assert found["heldout_reward_low"] == pytest.approx(5 / 18 - half, rel=1e-6)
    assert found["heldout_reward_high"] == pytest.approx(5 / 18 + half, rel=1e-6)
    # passed: 2 of 4, 1 of 4, 0 of 3; pass@2: 1 - 1/6, 1 - 3/6, 0
    assert found["heldout_pass_at_1"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert found["heldout_pass_at_2"] == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert 0 < found["heldout_pass_at_2_low"] < found["heldout_pass_at_2"]


def test_a_prompt_with_fewer_scored_responses_than_k_counts_only_in_the_smaller_ks():
    config = PpoEvaluationConfig.model_validate(held_out(4, samples_per_prompt=2, pass_at=[1, 2]))
    found = describe([[1.0, 0.0], [0.0]], config, "heldout_small_")
    assert found["heldout_small_pass_at_1"] == 0.25
    assert found["heldout_small_pass_at_2"] == 1.0


def test_the_policy_is_evaluated_before_every_nth_and_after_the_last_round(start, tmp_path):
    evaluation = held_out(8, 24, samples_per_prompt=2, pass_at=[1, 2], pass_reward=0.3)
    final, curve = run(start, tmp_path / "a1", steps=5, evaluation=evaluation)
    assert list(measured(curve)) == [0, 2, 4, 5]
    last = measured(curve)[5]
    for name in ("heldout_reward", "heldout_pass_at_1"):
        (whole, small, large) = (
            measured(curve, name.replace("heldout_", prefix))[5]
            for prefix in ("heldout_", "heldout_small_", "heldout_large_")
        )
        assert whole == pytest.approx((8 * small + 24 * large) / 32)
    assert measured(curve, "heldout_reward_low")[5] < last
    assert last < measured(curve, "heldout_reward_high")[5]
    tokens = measured(curve, "heldout_tokens")
    assert all(32 * 2 <= n <= 32 * 2 * 6 for n in tokens.values())
    assert final["heldout_tokens"] == sum(tokens.values())
    assert final["heldout_reward_before"] == measured(curve)[0]
    assert final["heldout_pass_at_2_before"] == measured(curve, "heldout_pass_at_2")[0]
    assert "ppo/heldout_seconds" in curve[0]["metrics"]


def test_an_evaluation_changes_nothing_about_the_training(start, tmp_path):
    _, plain = run(start, tmp_path / "plain")
    _, evaluated = run(start, tmp_path / "a1", evaluation=held_out(8, export="last"))
    assert without_heldout(evaluated) == without_heldout(plain)
    assert are_equal(weights(tmp_path / "a1/artifact"), weights(tmp_path / "plain/artifact"))


def falling(tmp_path):
    """Prompts whose reward rises while that of the held-out prompts falls."""
    rows = [{"prompt": f"{n} tea please", "is_trained": True} for n in ("one", "two", "three")]
    write_jsonl(tmp_path / "trained.jsonl", rows)
    return {
        "prompts": {"name": "files", "path": str(tmp_path / "trained.jsonl")},
        "reward": "only_in_training",
        "prompts_per_step": 8,
        "group_size": 8,
        "steps": 6,
    }


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.3}], ids=["weights", "average"])
def test_the_best_weights_are_kept_and_become_the_artifact(start, tmp_path, changes):
    evaluation = held_out(16, every=1)
    given = {**falling(tmp_path), **changes}
    final, curve = run(start, tmp_path / "a1", evaluation=evaluation, **given)
    rewards = measured(curve)
    best = max(range(1, 7), key=lambda step: rewards[step])
    assert best < 6
    assert (final["best_step"], final["exported_step"]) == (best, best)
    assert final["heldout_reward"] == rewards[best] > rewards[6]

    kept = {int(p.name[-8:]) for p in (tmp_path / "a1/checkpoints").glob("step-*")}
    assert kept == {best, 5}
    # training as long as that, and no further, gives the same weights
    run(start, tmp_path / "short", evaluation=evaluation, **{**given, "steps": best})
    assert are_equal(weights(tmp_path / "a1/artifact"), weights(tmp_path / "short/artifact"))

    last = {**evaluation, "export": "last"}
    final, _ = run(start, tmp_path / "last", evaluation=last, **given)
    assert (final["best_step"], final["exported_step"]) == (best, 6)
    assert final["heldout_reward"] == rewards[6]
    assert not are_equal(weights(tmp_path / "a1/artifact"), weights(tmp_path / "last/artifact"))


@pytest.mark.parametrize("stop_after", [1, 2, 4])
def test_a_stopped_run_goes_on_to_the_same_curve_and_the_same_artifact(start, tmp_path, stop_after):
    evaluation = held_out(16, samples_per_prompt=2, pass_at=[2], pass_reward=0.2)
    given = partial(run, start, evaluation=evaluation, ema_decay=0.3, **falling(tmp_path))
    final, whole = given(tmp_path / "a0")
    given(tmp_path / "a1", stop_after=stop_after)
    again, resumed = given(tmp_path / "a2", earlier=[tmp_path / "a1"])
    assert again == final
    assert measured(resumed) == measured(whole)
    assert without_heldout(resumed) == without_heldout(whole)
    assert are_equal(weights(tmp_path / "a2/artifact"), weights(tmp_path / "a0/artifact"))


def test_a_run_that_starts_again_in_its_folder_has_one_evaluation_before_the_first_round(
    start, tmp_path
):
    for _ in range(2):
        _, curve = run(start, tmp_path / "a1", evaluation=held_out(4), save_every_steps=100)
        for checkpoint in (tmp_path / "a1/checkpoints").glob("step-*/COMPLETE"):
            checkpoint.unlink()
    assert [p["step"] for p in curve] == [0, 1, 2, 3, 4]


def test_a_lost_best_checkpoint_is_an_error(start, tmp_path):
    evaluation = held_out(16, every=1)
    given = partial(run, start, evaluation=evaluation, **falling(tmp_path))
    final, _ = given(tmp_path / "a0")
    given(tmp_path / "a1", stop_after=5)
    best = tmp_path / f"a1/checkpoints/step-{int(final['best_step']):08d}/COMPLETE"
    best.unlink()
    with pytest.raises(IntegrityError, match=f"checkpoint, of step {final['best_step']:.0f}, is"):
        given(tmp_path / "a2", earlier=[tmp_path / "a1"])


def test_greedy_responses_are_the_same_at_any_seed(start, tmp_path):
    evaluation = held_out(8, temperature=0.0)
    found = [
        measured(run(start, tmp_path / f"s{seed}", seed=seed, evaluation=evaluation)[1])[0]
        for seed in (0, 1)
    ]
    assert found[0] == found[1]


def test_prompts_that_are_trained_on_are_refused_and_can_be_left_out(start, tmp_path):
    rows = [{"prompt": "two tea"}, {"prompt": "one pie"}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    write_jsonl(tmp_path / "trained.jsonl", rows[:1])
    files = {
        n: {"name": "files", "path": str(tmp_path / f"{n}.jsonl")} for n in ("rows", "trained")
    }
    evaluation = {"every": 1, "prompts": [{"data": files["rows"]}]}
    changes = {"prompts": files["trained"], "steps": 1}
    with pytest.raises(
        DataError, match=r"1 of 2 different prompts of evaluation\.prompts .*two tea"
    ):
        run(start, tmp_path / "a1", evaluation=evaluation, **changes)
    kept = {**evaluation, "exclude": files["trained"]}
    _, curve = run(start, tmp_path / "a2", evaluation=kept, **changes)
    assert "ppo/heldout_reward_low" not in curve[0]["metrics"]  # one prompt has no deviation
