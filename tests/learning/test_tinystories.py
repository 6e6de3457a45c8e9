"""The lifecycle on a real pretrained model and real text, shortened; its stages in this process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flows import full_rlhf
from flows.config.presets import load_config
from tests.in_this_process import InThisProcess

pytestmark = pytest.mark.slow

SHORTER = {
    "sft": {"training": {"epochs": 0.5}},
    "feedback": {"prompts": {"limit": 600}},
    "rejection_sampling": {"prompts": {"limit": 64}},
    "preference_pairs": {"prompts": {"limit": 64}},
    "ppo": {"steps": 12, "prompts_per_step": 16, "policy_optimizer": {"learning_rate": 4.0e-4}},
    "evaluation": {"prompts": {"limit": 100}},
}


@pytest.mark.timeout(1800)
def test_stories_grow_happier_by_a_lexicon_that_the_reward_model_never_saw(
    shared_data: Path, tmp_path: Path
) -> None:
    config = load_config("tinystories", {"data_root": str(shared_data), **SHORTER})
    recipe = InThisProcess(config, tmp_path)
    full_rlhf.steps(recipe)

    store, ref = recipe.connections.store, recipe.refs["evaluation"]
    manifest = store.find(ref.stage, ref.key)
    assert manifest is not None
    log = store.attempt_of(manifest).log.read_text()
    assert "rollouts come from transformers, which is slower than vLLM" in log
    numbers = json.loads((store.artifact_dir(manifest) / "summary.json").read_text())
    sft, final = numbers["baseline"], numbers["policy"]
    error = math.hypot(sft["reward_stderr"], final["reward_stderr"])
    assert final["mean_reward"] - sft["mean_reward"] > 3 * error
