"""The stages of one small lifecycle, one after the other, each with its finished inputs."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from stages.files import read_jsonl, write_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from training_core.data import cafe

HELDOUT = {"name": "cafe", "split": "heldout", "size": 32}
ROLLOUTS = {"engine": "transformers", "max_response_tokens": 24, "max_tokens": 64}


def training(epochs, learning_rate, **settings):
    optimizer = {"learning_rate": learning_rate}
    return {
        "epochs": epochs,
        "batch_size": 16,
        "max_tokens": 64,
        "optimizer": optimizer,
        **settings,
    }


SFT = {
    "base": {
        "name": "scratch",
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 64,
    },
    "data": {"name": "cafe", "size": 400},
    "eval_data": HELDOUT,
    "chat_template": "roles",
    "training": training(6, 1e-2),
}
PPO = {
    "prompts": {"name": "cafe", "size": 16, "seed": 4},
    "rollouts": ROLLOUTS,
    "steps": 2,
    "prompts_per_step": 8,
    "kl_coef": 0.1,
    "policy_optimizer": {"learning_rate": 1e-3, "schedule": "constant"},
    "critic_optimizer": {"learning_rate": 1e-3, "schedule": "constant"},
}


@dataclass(frozen=True)
class Chain:
    """The finished stages of one small lifecycle."""

    store: Store
    steps: dict[str, Manifest]

    def __getitem__(self, step: str) -> Manifest:
        return self.steps[step]

    def dir(self, step: str) -> Path:
        return self.store.artifact_dir(self.steps[step])

    def rows(self, step: str) -> list[dict]:
        return list(read_jsonl(self.dir(step) / "data.jsonl"))

    def curves(self, step: str) -> list[dict]:
        m = self.steps[step]
        return read_jsonl(self.store.attempt_of(m).metrics)


@pytest.fixture(scope="module")
def chain(finish, tmp_path_factory) -> Chain:
    store = Store(tmp_path_factory.mktemp("chain"))
    steps: dict[str, Manifest] = {}

    def step(name, stage, config, **parents):
        given = {role: steps[parent] for role, parent in parents.items()}
        steps[name] = finish(store, stage, config, given)

    prompts = {"name": "cafe", "size": 24, "seed": 2}
    groups = {"prompts": prompts, "rollouts": ROLLOUTS, "group_size": 4}
    step("sft", "sft", SFT)
    rm = {"data": {"name": "cafe", "size": 400, "seed": 1}, "training": training(6, 5e-3)}
    step("reward_model", "reward_model", {**rm, "eval_data": HELDOUT}, policy="sft")
    step(
        "rejection_sampling",
        "rejection_sampling",
        groups,
        policy="sft",
        reward_model="reward_model",
    )
    step(
        "rejection_sft",
        "sft",
        {"training": training(2, 1e-3)},
        policy="sft",
        dataset="rejection_sampling",
    )
    step("preference_pairs", "preference_pairs", groups, policy="sft", reward_model="reward_model")
    step(
        "dpo",
        "dpo",
        {"training": training(3, 1e-3)},
        policy="sft",
        reference="sft",
        dataset="preference_pairs",
    )
    step("ppo", "ppo", PPO, policy="dpo", reference="dpo", reward_model="reward_model")
    evaluation = {"prompts": HELDOUT, "reward": {"name": "cafe"}, "rollouts": ROLLOUTS}
    step(
        "evaluation",
        "evaluation",
        evaluation,
        policy="ppo",
        baseline="sft",
        policy_dpo="dpo",
        policy_twin="sft",
    )
    small = {"eval_data": HELDOUT, "training": training(1, 3e-3)}
    pairs = {"name": "cafe", "size": 64, "seed": 3}
    step("kto", "kto", {**small, "data": pairs}, policy="sft", reference="sft")
    step("distillation", "distillation", {**small, "data": pairs}, policy="sft", teacher="dpo")
    solutions = {"name": "files", "path": str(_solutions(tmp_path_factory.mktemp("solutions")))}
    process_reward = {"data": solutions, "training": training(4, 1e-2)}
    step("process_reward", "process_reward", process_reward, policy="sft")
    for kind, source in (("policy", "sft"), ("reward_model", "reward_model")):
        model = {"name": "local", "path": str(store.artifact_dir(steps[source]))}
        step(f"given_{kind}", f"given_{kind}", {"model": model})
    return Chain(store, steps)


def _solutions(folder: Path) -> Path:
    """Orders repeated dish by dish; the second step is right in every other row."""
    rows = cafe.rows("demonstrations", split="train", size=160, seed=5)
    solved = [
        {
            "prompt": row["messages"][0]["content"],
            "completions": ["here are", "two tea" if number % 2 else "two cake"],
            "labels": [True, bool(number % 2)],
        }
        for number, row in enumerate(rows)
    ]
    write_jsonl(folder / "solutions.jsonl", solved)
    return folder / "solutions.jsonl"
