"""Whole runs of the stage `ppo` with each algorithm, on a tiny policy and a reward by rule."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest
import torch

from stages.reinforcement.ppo_models import load_ppo_models
from tests.stages.ppo_runs import (
    PARTS,
    config_of,
    distance,
    make_start,
    parts_of,
    run,
    weights,
)
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.policy_losses import POLICY_LOSSES


@pytest.fixture(scope="module")
def start(make_policy, tokenizer, tmp_path_factory) -> Path:
    return make_start(tmp_path_factory.mktemp("start"), make_policy(), tokenizer)


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_advantage_trains_and_only_gae_trains_a_critic(start, tmp_path, name):
    needed = {"reward": parts_of(start)} if ADVANTAGES[name].needs_parts else {}
    advantage = {"name": name}
    final, curve = run(start, tmp_path / "a1", advantage=advantage, save_every_steps=1, **needed)
    assert distance(tmp_path / "a1" / "artifact", start / "policy") > 1e-3
    assert {"reward", "kl", "response_tokens", "logprob_gap"} == set(final)
    has_critic = any(metric.startswith("ppo/critic_") for metric in curve[0])
    (checkpoint,) = (tmp_path / "a1" / "checkpoints").glob("step-*")
    saved = {path.stem for path in checkpoint.glob("*.safetensors")}
    assert has_critic is (name == "gae")
    assert saved == ({"policy", "critic"} if has_critic else {"policy"})


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_every_policy_loss_trains(start, tmp_path, name):
    changes = {"advantage": {"name": "grpo"}, "policy_loss": {"name": name}, "kl_coef": 0.0}
    final, curve = run(start, tmp_path / "a1", **changes)
    assert distance(tmp_path / "a1" / "artifact", start / "policy") > 1e-3
    assert curve[0]["ppo/policy_grad_norm"] > 0
    assert "kl" not in final


@pytest.mark.parametrize(
    "name", ["tis_token", "tis_sequence", "icepop", "sequence_mask", "geometric_mask"]
)
def test_a_sampler_that_is_the_trainer_needs_no_correction(start, tmp_path, name):
    changes = {"advantage": {"name": "rloo"}, "steps": 1}
    run(start, tmp_path / "plain", **changes)
    run(start, tmp_path / "corrected", correction={"name": name}, **changes)
    # the sampler's kernels round differently, and Adam's first step depends on signs alone
    gap = distance(tmp_path / "plain" / "artifact", tmp_path / "corrected" / "artifact")
    assert gap < 0.1 * distance(tmp_path / "plain" / "artifact", start / "policy")


def test_nothing_is_loaded_that_nothing_uses(start):
    changes = {"advantage": {"name": "grpo"}, "kl_coef": 0.0, "old_logprobs": "sampler"}
    models = load_ppo_models(config_of(start, **changes), {"policy": start / "policy"})
    assert models.critic is None
    assert models.reference is None
    assert models.functions.policy is None
    assert set(models.learners) == {"policy"}


def test_the_samplers_log_probabilities_serve_as_old_ones(start, tmp_path):
    changes = {"advantage": {"name": "rloo"}, "steps": 1, "updates_per_step": 1}
    _, (recomputed,) = run(start, tmp_path / "trainer", **changes)
    _, (reused,) = run(start, tmp_path / "sampler", old_logprobs="sampler", **changes)
    assert reused["ppo/policy_loss"] == pytest.approx(recomputed["ppo/policy_loss"], abs=1e-5)
    assert reused["ppo/logprob_gap"] < 1e-4
    assert abs(reused["ppo/policy_update_kl"]) < 1e-5


def test_the_only_update_of_a_round_computes_the_old_log_probabilities_itself(start, tmp_path):
    changes = {"advantage": {"name": "grpo"}, "steps": 2, "updates_per_step": 1}
    _, before = run(start, tmp_path / "trainer", **changes)
    _, within = run(start, tmp_path / "update", old_logprobs="update", **changes)
    for one, other in zip(before, within, strict=True):
        assert other["ppo/policy_grad_norm"] == pytest.approx(one["ppo/policy_grad_norm"], rel=1e-4)
        assert other["ppo/policy_update_kl"] == 0
        assert other["ppo/logprob_gap"] < 1e-4
    made = (tmp_path / name / "artifact" for name in ("trainer", "update"))
    assert distance(*made) < 1e-2 * distance(tmp_path / "update" / "artifact", start / "policy")


def test_the_policy_becomes_the_reference_after_the_declared_rounds(start, tmp_path):
    changes = {"steps": 3, "advantage": {"name": "rloo"}, "kl_coef": 0.05}
    _, fixed = run(start, tmp_path / "fixed", **changes)
    _, reset = run(start, tmp_path / "reset", reference_reset_steps=1, **changes)
    assert [abs(c["ppo/kl"]) > 1e-4 for c in fixed] == [False, True, True]
    assert [abs(c["ppo/kl"]) > 1e-4 for c in reset] == [False, False, False]


def test_a_weight_average_becomes_the_artifact(start, tmp_path):
    changes = {"advantage": {"name": "rloo"}, "steps": 1, "updates_per_step": 1}
    run(start, tmp_path / "plain", **changes)
    run(start, tmp_path / "average", ema_decay=0.75, **changes)
    first, last, mean = (
        weights(d)["model.norm.weight"]
        for d in (start / "policy", tmp_path / "plain/artifact", tmp_path / "average/artifact")
    )
    torch.testing.assert_close(mean, 0.75 * first + 0.25 * last)
    assert not torch.equal(first, last)


def test_a_round_in_which_no_group_teaches_trains_nothing_and_is_counted(start, tmp_path):
    changes = {
        "advantage": {"name": "grpo"},
        "steps": 1,
        "dynamic_sampling": {"min_mean": 2.0, "max_tries": 2},
    }
    final, (curve,) = run(start, tmp_path / "a1", **changes)
    assert distance(tmp_path / "a1" / "artifact", start / "policy") == 0.0
    assert curve["ppo/dropped_groups"] == 8
    assert final == {}


def test_a_round_whose_responses_are_all_cut_trains_nothing_if_they_are_masked(start, tmp_path):
    rollouts = {"engine": "transformers", "max_response_tokens": 1, "max_tokens": 64}
    reward = {"name": "python", "path": f"{start / 'reward.py'}:first"}
    changes = {"advantage": {"name": "rloo"}, "steps": 1, "rollouts": rollouts, "reward": reward}
    _, (curve,) = run(start, tmp_path / "a1", unfinished="mask", **changes)
    assert curve["ppo/finished_fraction"] == 0.0
    assert distance(tmp_path / "a1" / "artifact", start / "policy") == 0.0
    run(start, tmp_path / "a2", **changes)
    assert distance(tmp_path / "a2" / "artifact", start / "policy") > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": {"name": "grpo"}, "kl_coef": 0.0},
        {"advantage": {"name": "dr_grpo"}, "kl_coef": 0.0, "dynamic_sampling": {}},
        {"advantage": {"name": "reinforce_pp"}, "policy_loss": {"name": "cispo"}},
    ],
    ids=["grpo", "dr_grpo_dynamic", "reinforce_pp_cispo"],
)
def test_a_policy_without_a_critic_learns_to_say_the_word(start, tmp_path, changes):
    many = {"steps": 20, "prompts_per_step": 8, "group_size": 8, "updates_per_step": 2}
    _, curve = run(start, tmp_path / "a1", **many, **changes)
    rewards = [c["ppo/reward"] for c in curve]
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.5


def test_gdpo_learns_the_parts_of_the_reward_by_their_weights(start, tmp_path):
    many = {"steps": 20, "prompts_per_step": 8, "group_size": 8, "kl_coef": 0.0}
    last = {}
    for name, shares in {"word": (1.0, 0.0), "both": (1.0, 1.0), "short": (0.0, 1.0)}.items():
        reward = parts_of(start, *shares)
        changes = {"reward": reward, "advantage": {"name": "gdpo"}, **many}
        _, curve = run(start, tmp_path / name, **changes)
        last[name] = {n: fmean(c[f"ppo/component_{n}"] for c in curve[-3:]) for n in PARTS}
        first = {n: curve[0][f"ppo/component_{n}"] for n in PARTS}
    assert first["share"] < 0.1
    assert first["length"] < -0.5
    assert last["word"]["share"] > 0.5
    assert last["short"]["share"] < 0.1
    assert last["word"]["length"] < -0.5
    assert last["short"]["length"] > -0.1
    assert last["both"]["share"] > 0.3
    assert last["both"]["length"] > -0.3


def test_bootstrapping_changes_the_returns_of_cut_responses(start, tmp_path):
    changed = partial(run, start, steps=1)
    _, (terminal,) = changed(tmp_path / "terminal")
    _, (going_on,) = changed(tmp_path / "bootstrap", unfinished="bootstrap")
    # the first values are 0, from a head of zeros, so only a trained critic would differ
    assert going_on["ppo/critic_return"] == pytest.approx(terminal["ppo/critic_return"])
    _, (_, terminal) = run(start, tmp_path / "terminal2")
    _, (_, going_on) = run(start, tmp_path / "bootstrap2", unfinished="bootstrap")
    assert terminal["ppo/reward"] == going_on["ppo/reward"]
    assert terminal["ppo/critic_return"] != going_on["ppo/critic_return"]


def test_texts_beside_the_experience_become_likelier(start, tmp_path):
    texts = [{"text": "here are two tea . enjoy your meal !"}] * 4
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    data = {"name": "files", "path": str(tmp_path / "texts.jsonl")}
    changes = {"advantage": {"name": "rloo"}, "kl_coef": 0.0}
    mixed = {"pretraining_data": data, "pretraining_coef": 1.0, "pretraining_batch_size": 2}
    _, curve = run(start, tmp_path / "a1", steps=4, **changes, **mixed)
    losses = [c["ppo/policy_pretraining_loss"] for c in curve]
    assert losses[-1] < losses[0] - 1.0
    _, plain = run(start, tmp_path / "a2", steps=1, **changes)
    assert "ppo/policy_pretraining_loss" not in plain[0]
