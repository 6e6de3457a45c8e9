"""Whole runs of the stage `ppo` on a tiny policy and a reward by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from stages import ppo
from stages.attempt import Attempt
from stages.configs.ppo_config import PpoConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from training_core.errors import StoppedError
from training_core.models import hub

REWARD = '''"""Rewards of a task that can be verified: say one word."""


def share(rollout, *, word="tea"):
    """Share of a word among the response's words."""
    words = rollout.text.split()
    return words.count(word) / max(1, len(words))


def first(rollout):
    """Id of the first token."""
    return rollout.response_ids[0] / 100
'''


def make_start(folder: Path, policy: Any, tokenizer: Any) -> Path:
    """A folder with a policy of random weights and a reward."""
    hub.save(policy, tokenizer, folder / "policy")
    (folder / "reward.py").write_text(REWARD)
    return folder


def config_of(start, **changes):
    plain = {
        "prompts": {"name": "cafe", "size": 16, "seed": 4},
        "reward": {"name": "python", "path": f"{start / 'reward.py'}:share"},
        "rollouts": {"engine": "transformers", "max_response_tokens": 6, "max_tokens": 64},
        "steps": 2,
        "prompts_per_step": 4,
        "policy_optimizer": {"learning_rate": 1e-2},
        "critic_optimizer": {"learning_rate": 1e-2},
    }
    return PpoConfig.model_validate({**plain, **changes})


def run(start, directory, *, stop_after=None, earlier=(), **changes):
    """Run the stage, or stop it after some rounds; return the final metrics and the curve."""
    directory.mkdir(parents=True)
    attempt = Attempt(directory)

    def should_stop():
        done = json.loads(attempt.progress.read_text())["done"]
        return stop_after is not None and done >= stop_after

    context = Context(attempt, FileSink(attempt, "ppo"), tuple(map(Attempt, earlier)), should_stop)
    config = config_of(start, **changes)
    inputs = {"policy": start / "policy"}
    if config.kl_coef:
        inputs["reference"] = start / "policy"
    metrics = {}
    try:
        metrics = dict(ppo.run(config, inputs, context).metrics)
    except StoppedError:
        assert stop_after is not None
    return metrics, [line["metrics"] for line in read_jsonl(attempt.metrics)]


PARTS = ("share", "length")
"""Names of the parts in `parts_of`."""


def parts_of(start, share=1.0, length=1.0):
    """A weighted reward: the word, and the length of the response."""
    word = {"name": "python", "path": f"{start / 'reward.py'}:share"}
    parts = [
        {"label": "share", "reward": word, "weight": share},
        {"reward": {"name": "length", "free_tokens": 1, "max_tokens": 7}, "weight": length},
    ]
    return {"name": "weighted", "parts": parts}


def weights(directory):
    return load_file(directory / "model.safetensors")


def distance(one, other):
    first, second = weights(one), weights(other)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def without_times(curve):
    return [{n: v for n, v in c.items() if not n.endswith("_seconds")} for c in curve]
