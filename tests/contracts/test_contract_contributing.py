"""The worked examples of CONTRIBUTING.md: each is applied to a copy of the sources and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("flows", "tasks", "stages", "training_core", "deployments")
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = dict(
    re.findall(
        r"^\*\*A (loss|reward|stage|preset)\*\*[^\n]*\n\n```diff\n(.*?)```", PAGE, re.S | re.M
    )
)

USE = """
import json
from pathlib import Path
from flows.config.presets import load_config
from flows.full_rlhf import steps
from flows.recipe.outline import outline_of
from stages.runtime.store import Store
from tests.stages.running import finish

store = Store(Path("store"))
sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
training = {"batch_size": 8, "max_tokens": 64, "optimizer": {"learning_rate": 1e-2}}
rollouts = {"engine": "transformers", "max_response_tokens": 16, "max_tokens": 64}
cafe = {"name": "cafe", "size": 32}
sft = finish(store, "sft", {"base": {"name": "scratch", **sizes}, "chat_template": "roles",
                            "data": cafe, "training": training})
dpo = finish(store, "dpo", {"loss": {"name": "apo_zero"}, "data": cafe, "eval_data": cafe,
                            "training": {**training, "epochs": 4}},
             {"policy": sft, "reference": sft})
groups = finish(store, "rejection_sampling",
                {"prompts": cafe, "rollouts": rollouts, "keep_unfinished": True,
                 "reward": {"name": "near_length", "target_tokens": 4}}, {"policy": sft})
average = finish(store, "average", {}, {"policy": sft, "policy_other": dpo})
preset = load_config("tiny-cautious")
print(json.dumps({
    "margins": [dpo.metrics["heldout_margin_before"], dpo.metrics["heldout_margin"]],
    "rewards": [groups.metrics["mean_reward"], groups.metrics["best_reward"]],
    "directories": [str(store.artifact_dir(m).resolve()) for m in (sft, dpo, average)],
    "average": [average.kind, average.metrics["policies"]],
    "kl_coef": [preset.ppo.kl_coef, load_config("tiny").ppo.kl_coef],
    "name": preset.name,
    "wired": outline_of(steps, load_config("tiny-cautious", {
        "steps": {"mean": {"average": {}}}, "inputs": {"mean": {"policy_other": "sft"}},
    })).inputs["mean"],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with all four examples applied."""
    folder = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in EXAMPLES.values():
        subprocess.run(["git", "apply", "-"], cwd=folder, input=diff, text=True, check=True)
    return folder


@pytest.fixture(scope="module")
def used(copy: Path) -> dict[str, Any]:
    """What a process saw that used each of them."""
    # `make coverage` would look for the files of the copy in this project.
    unmeasured = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USE],
        cwd=copy,
        env={**unmeasured, "PYTHONPATH": f"{copy}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


def test_there_is_an_example_of_each():
    assert set(EXAMPLES) == {"loss", "reward", "stage", "preset"}


@pytest.mark.parametrize("name", ["loss", "reward", "stage", "preset"])
def test_an_example_takes_at_most_two_files_and_25_lines(name):
    lines = EXAMPLES[name].splitlines()
    files = [line for line in lines if line.startswith("+++ ")]
    added = [line for line in lines if line.startswith("+") and line[1:].strip()]
    assert len(files) <= 2
    assert len(added) - len(files) <= 25


def test_the_examples_pass_the_linter_and_its_formatter(copy):
    for command in (["check", "--quiet"], ["format", "--check", "--quiet"]):
        ruff = [Path(sys.executable).parent / "ruff", *command]
        config = ["--config", ROOT / "pyproject.toml", "flows", "stages", "training_core"]
        subprocess.run([*ruff, *config], cwd=copy, check=True)


def test_the_new_loss_trains(used):
    before, after = used["margins"]
    assert before == pytest.approx(0, abs=1e-3)
    assert after > 0.01


def test_the_new_reward_ranks(used):
    mean, best = used["rewards"]
    assert mean < best <= 0


def test_the_new_stage_runs_and_any_preset_may_have_it_as_a_step(used):
    from safetensors.torch import load_file

    one, other, mean = (load_file(f"{d}/model.safetensors") for d in used["directories"])
    name = "model.layers.0.mlp.up_proj.weight"
    assert not one[name].equal(other[name])
    assert mean[name].allclose((one[name] + other[name]) / 2)
    assert used["average"] == ["policy", 2.0]
    assert used["wired"] == {"policy": "ppo", "policy_other": "sft"}


def test_the_new_preset_inherits_and_changes_one_value(used):
    assert used["name"] == "tiny-cautious"
    assert used["kl_coef"][0] == 0.1 != used["kl_coef"][1]
