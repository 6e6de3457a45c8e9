"""The lifecycle on a real pretrained model and real text, shortened."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.lifecycle.driver import Lifecycle

pytestmark = pytest.mark.lifecycle

SHORTER = {
    "sft": {"training": {"epochs": 0.5}},
    "feedback": {"prompts": {"limit": 600}},
    "rejection_sampling": {"prompts": {"limit": 64}},
    "preference_pairs": {"prompts": {"limit": 64}},
    "ppo": {"steps": 12, "prompts_per_step": 16, "policy_optimizer": {"learning_rate": 4.0e-4}},
}


@pytest.mark.timeout(900)
def test_stories_grow_happier_by_a_lexicon_that_the_reward_model_never_saw(
    lifecycle: Lifecycle, shared_data: Path
) -> None:
    overrides = {"data_root": str(shared_data), **SHORTER}
    run_id = lifecycle.start("full-rlhf/tinystories", overrides=overrides)
    assert lifecycle.wait(run_id, seconds=800).state_name == "Completed"
    assert lifecycle.says(run_id, "rollouts come from transformers, which is slower than vLLM")
    directory = lifecycle.store.artifact_dir(lifecycle.manifest_of(run_id, "evaluation"))
    numbers = json.loads((directory / "summary.json").read_text())
    sft, final = numbers["baseline"], numbers["policy"]
    error = math.hypot(sft["reward_stderr"], final["reward_stderr"])
    assert final["mean_reward"] - sft["mean_reward"] > 3 * error
