"""docs/lifecycles.md, and what a project outside of the repository needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows import full_rlhf
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import ROOT
from flows.recipe.outline import block_names, outline_of
from tests.own_project import PAGE, own_project

EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize(
    ("preset", "steps"),
    zip(
        EXAMPLES,
        [
            ["sft", "dpo", "evaluation", "champion_match"],
            ["sft", "ppo"],
            ["chat", "maths", "prefer"],
        ],
        strict=True,
    ),
)
def test_the_page_shows_whole_presets(preset, steps):
    config = LifecycleConfig.model_validate(preset)
    assert list(outline_of(full_rlhf.steps, config).refs) == steps


def test_the_page_draws_every_block_in_the_order_of_the_flow():
    (drawn,) = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    blocks = [*block_names()[:-1], "steps", "evaluation"]
    assert [*dict.fromkeys(re.findall(r"\w+", drawn.partition("\n")[2]))] == [
        *blocks[: blocks.index("dpo")], "round", "after", *blocks[blocks.index("dpo") :]
    ]  # fmt: skip


OUTLINE = """
import json, sys
import again
from flows.theirs import THEIRS
from ratchet import load_config
from flows.recipe.outline import block_names, outline_of
print(json.dumps([THEIRS, outline_of(again.steps, load_config("mine.yaml")).inputs]))
"""


@pytest.mark.parametrize("is_package", [True, False])
def test_a_flow_of_ones_own_lives_beside_folders_called_flows_and_tasks(is_package, tmp_path):
    own_project(tmp_path, is_package=is_package)
    done = subprocess.run(
        [sys.executable, "-c", OUTLINE],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs, inputs = yaml.safe_load(done.stdout.splitlines()[-1])
    assert theirs == "a module of the project"
    assert inputs["again_3"] == {"policy": "again_2", "reference": "again_2"}
    assert inputs["evaluation"] == {"policy": "again_3", "baseline": "sft"}


def test_what_a_project_imports_is_ours_even_if_its_own_package_came_first(tmp_path):
    own_project(tmp_path, is_package=True)
    program = (
        "import flows, tasks; import ratchet; from flows import theirs, full_rlhf; print(flows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(Path(tmp_path, "flows")) in done.stdout
