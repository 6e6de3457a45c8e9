"""Runs of the stage `ppo` that were stopped, with an adapter and in bfloat16, too."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.reinforcement.ppo_models import load_ppo_models
from tests.stages.ppo_runs import config_of, distance, make_start, run, weights, without_times


@pytest.fixture(scope="module")
def start(make_policy, tokenizer, tmp_path_factory) -> Path:
    return make_start(tmp_path_factory.mktemp("start"), make_policy(), tokenizer)


STATEFUL = {
    "steps": 4,
    "advantage": {"name": "grpo"},
    "dynamic_sampling": {"oversample": 1.5},
    "normalise_rewards": True,
    "kl_coef": 0.1,
    "kl_control": {"name": "adaptive", "target": 0.5, "horizon": 100},
    "kl_in": "loss",
    "kl_estimator": "k2",
    "reference_reset_steps": 2,
    "ema_decay": 0.5,
    "entropy_coef": 0.01,
}


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_stopped_run_goes_on_with_its_surplus_statistics_reference_and_average(
    start, tmp_path, stop_after
):
    reward = {"name": "python", "path": f"{start / 'reward.py'}:first"}
    stateful = partial(run, start, reward=reward, **STATEFUL)
    final, whole = stateful(tmp_path / "a0")
    stateful(tmp_path / "a1", stop_after=stop_after)
    again, resumed = stateful(tmp_path / "a2", earlier=[tmp_path / "a1"])
    assert distance(tmp_path / "a2" / "artifact", tmp_path / "a0" / "artifact") == 0.0
    assert without_times(resumed) == without_times(whole)
    assert again == final
    assert len({c["ppo/kl_coef"] for c in whole}) == 4
    assert any(c["ppo/surplus_groups"] for c in whole)
    assert any(c["ppo/policy_lag"] > 0 for c in whole)
    assert all(c["ppo/equal_groups"] == 0 for c in whole)


LORA = {"advantage": {"name": "rloo"}, "model": {"lora": {"rank": 4, "alpha": 8.0}}, "steps": 4}


def test_an_adapter_trains_against_the_policy_without_it_and_is_merged(start, tmp_path):
    reward = {"name": "python", "path": f"{start / 'reward.py'}:first"}
    config = config_of(start, **LORA)
    inputs = {"policy": start / "policy", "reference": start / "policy"}
    assert load_ppo_models(config, inputs).reference is None
    other = tmp_path / "other"
    shutil.copytree(start / "policy", other)
    separate = load_ppo_models(config, {**inputs, "reference": other})
    assert separate.reference is not None

    _, curve = run(start, tmp_path / "a1", reward=reward, save_every_steps=1, **LORA)
    assert curve[0]["ppo/kl"] == pytest.approx(0.0, abs=1e-5)
    assert abs(curve[-1]["ppo/kl"]) > 1e-3
    found, base = weights(tmp_path / "a1" / "artifact"), weights(start / "policy")
    assert found.keys() == base.keys()
    changed = {name for name in base if not torch.equal(found[name], base[name])}
    assert changed == {name for name in base if "_proj" in name}
    newest = max((tmp_path / "a1" / "checkpoints").glob("step-*"))
    assert all("lora" in name for name in load_file(newest / "policy.safetensors"))


def test_a_stopped_run_with_an_adapter_goes_on_as_if_nothing_had_happened(start, tmp_path):
    reward = {"name": "python", "path": f"{start / 'reward.py'}:first"}
    adapted = partial(run, start, reward=reward, ema_decay=0.5, **LORA)
    _, whole = adapted(tmp_path / "a0")
    adapted(tmp_path / "a1", stop_after=2)
    _, resumed = adapted(tmp_path / "a2", earlier=[tmp_path / "a1"])
    assert distance(tmp_path / "a2" / "artifact", tmp_path / "a0" / "artifact") == 0.0
    assert without_times(resumed) == without_times(whole)


HALF = {"model": {"dtype": "bfloat16", "gradient_checkpointing": True}}


def test_a_stopped_run_in_bfloat16_goes_on_as_if_nothing_had_happened(start, tmp_path):
    half = partial(run, start, steps=4, **HALF)
    _, whole = half(tmp_path / "a0")
    half(tmp_path / "a1", stop_after=2)
    _, resumed = half(tmp_path / "a2", earlier=[tmp_path / "a1"])
    assert without_times(resumed) == without_times(whole)
    found = weights(tmp_path / "a2" / "artifact")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert distance(tmp_path / "a2" / "artifact", tmp_path / "a0" / "artifact") == 0.0
    assert distance(tmp_path / "a2" / "artifact", start / "policy") > 1e-3


def test_a_run_in_bfloat16_learns_as_much(start, tmp_path):
    many = {"steps": 20, "prompts_per_step": 8, "group_size": 8, "advantage": {"name": "grpo"}}
    last = {}
    for name, changes in {"single": {}, "half": HALF}.items():
        _, curve = run(start, tmp_path / name, **many, **changes)
        last[name] = sum(c["ppo/reward"] for c in curve[-5:]) / 5
    assert last["single"] > 0.5
    assert last["half"] > 0.9 * last["single"]
