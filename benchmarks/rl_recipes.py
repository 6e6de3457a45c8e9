"""Tasks and settings of the runs that show that reinforcement learning works.

Shared by `benchmarks/rl_learning.py`, which does all runs, and `tests/learning`, which does one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning_recipes import write_rows
from flows.config.presets import load_config
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tests.stages.running import finish

Config = Mapping[str, Any]
NUMBERS = 100
"""Sums of two numbers below this one."""
HELD_OUT = 256
"""Sums for the choice of the checkpoint, and as many others for the judgement."""
DEMONSTRATIONS = 4000
RIGHT_SHARE = 0.25
"""Share of the demonstrations that are right; the answers of the others are one too high."""


@dataclass(frozen=True)
class Sums:
    """Sums of two numbers in digits, e.g. `4 7 + 0 8 =` and `0 5 5`, as the `data` of configs.

    No sum is in two of `trained`, `chosen` and `judged`.

    Attributes:
        shown: demonstrations of the first sums of `trained`, most of them wrong.
        trained: prompts of reinforcement learning.
        chosen: prompts by which the best checkpoint is chosen.
        judged: prompts of the reported numbers.
    """

    shown: Config
    trained: Config
    chosen: Config
    judged: Config


def write_sums(folder: Path, *, seed: int) -> Sums:
    """Write all sums in the order of a seed."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(NUMBERS) for b in range(NUMBERS)]
    rng.shuffle(pairs)
    rows = [
        {"prompt": f"{_digits(a, 2)} + {_digits(b, 2)} =", "answer": _digits(a + b, 3)}
        for a, b in pairs
    ]
    judged, chosen, trained = rows[:HELD_OUT], rows[HELD_OUT : 2 * HELD_OUT], rows[2 * HELD_OUT :]
    shown = [
        {"prompt": row["prompt"], "response": _digits(a + b + (rng.random() >= RIGHT_SHARE), 3)}
        for row, (a, b) in zip(trained[:DEMONSTRATIONS], pairs[2 * HELD_OUT :], strict=False)
    ]
    parts = {"shown": shown, "trained": trained, "chosen": chosen, "judged": judged}
    return Sums(**{name: write_rows(folder / f"{name}.jsonl", r) for name, r in parts.items()})


def _digits(number: int, width: int) -> str:
    return " ".join(f"{number:0{width}d}")


SUM_ROLLOUTS = {"engine": "transformers", "max_response_tokens": 6, "max_tokens": 32}
SUM_REWARD = {"name": "answer", "column": "answer"}
SUM_BASE = {
    "name": "scratch",
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 128,
}


def weak_start(store: Store, sums: Sums, *, seed: int) -> Manifest:
    """Train a small Llama with random weights on the demonstrations."""
    training = {
        "epochs": 8.0,
        "batch_size": 32,
        "max_tokens": 32,
        "optimizer": {"learning_rate": 5e-3},
    }
    config = {"base": SUM_BASE, "chat_template": "roles", "data": sums.shown}
    return finish(store, "sft", {**config, "training": training, "seed": seed})


def learn_sums(store: Store, sums: Sums, start: Manifest, *, seed: int, steps: int) -> Manifest:
    """Train with GRPO on right and wrong answers; the best checkpoint is the result."""
    config = {
        "prompts": sums.trained,
        "reward": SUM_REWARD,
        "rollouts": SUM_ROLLOUTS,
        "steps": steps,
        "prompts_per_step": 64,
        "group_size": 8,
        "updates_per_step": 4,
        "advantage": {"name": "grpo"},
        "kl_coef": 0.0,
        "policy_optimizer": {"learning_rate": 5e-4},
        "evaluation": {
            "every": max(1, steps // 10),
            "prompts": [{"data": sums.chosen}],
            "pass_at": [1],
        },
        "seed": seed,
    }
    return finish(store, "ppo", config, {"policy": start})


def judge_sums(store: Store, sums: Sums, start: Manifest, policy: Manifest) -> Manifest:
    """Sample four responses of both policies to each judged sum."""
    config = {
        "prompts": sums.judged,
        "reward": SUM_REWARD,
        "rollouts": SUM_ROLLOUTS,
        "responses_per_prompt": 4,
    }
    return finish(store, "evaluation", config, {"policy": policy, "baseline": start})


ALGORITHMS: dict[str, Config] = {
    "PPO": {"advantage": {"name": "gae"}},
    "REINFORCE++": {"advantage": {"name": "reinforce_pp"}},
    "RLOO": {"advantage": {"name": "rloo"}},
    "GRPO": {"advantage": {"name": "grpo"}},
}
MORE_ROUNDS = {"PPO": 2}
"""Algorithm -> factor on the rounds of `stories`: the critic of PPO begins with values of 0."""

SHORTER = {
    "sft": {"training": {"epochs": 0.5}},
    "ppo": {"prompts_per_step": 16, "policy_optimizer": {"learning_rate": 4.0e-4}},
}


def story_config(data: Path) -> Any:
    """Return the preset `tinystories`, with fewer steps that are larger."""
    return load_config("tinystories", {"data_root": str(data), **SHORTER})


def story_start(store: Store, data: Path) -> Manifest:
    """Fine-tune the pretrained model on stories, as the preset does in its first step."""
    return finish(store, "sft", _alone(story_config(data).sft))


def learn_stories(
    store: Store, data: Path, start: Manifest, name: str, *, seed: int, steps: int
) -> Manifest:
    """Train on the happiness of stories with an algorithm and the preset's other settings."""
    preset = story_config(data)
    reward = preset.evaluation.reward.model_dump(mode="json")
    rounds = steps * MORE_ROUNDS.get(name, 1)
    changes = {"reward": reward, "steps": rounds, "seed": seed, **ALGORITHMS[name]}
    config = {**_alone(preset.ppo), **changes}
    return finish(store, "ppo", config, {"policy": start, "reference": start})


def judge_stories(
    store: Store, data: Path, start: Manifest, policies: Mapping[str, Manifest]
) -> Manifest:
    """Judge all policies on stories that no step trained on; the last one is `policy`."""
    *others, last = policies
    roles = {f"policy_{name}": policies[name] for name in others} | {"policy": policies[last]}
    return finish(
        store, "evaluation", _alone(story_config(data).evaluation), {**roles, "baseline": start}
    )


def _alone(config: Any) -> dict[str, Any]:
    """Return a block of a preset with one thread."""
    return config.model_dump(mode="json") | {"resources": {"num_cpus": 1}}
