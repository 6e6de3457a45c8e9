"""The presets of deployments/presets/examples: valid, and their stages run, one for each method."""

from __future__ import annotations

import re

import pytest

from flows.cli.recipes import recipe_of
from flows.config.presets import PRESETS, ROOT, load_config
from flows.preflight.miniature import miniature
from flows.preflight.stand_ins import StandIns
from flows.recipe.outline import step_names
from stages.configs.sampling_config import RolloutConfig
from stages.configs.tree import rewritten
from stages.runtime.sources import missing_sources
from tests.in_this_process import InThisProcess

EXAMPLES = sorted((PRESETS / "examples").glob("*.yaml"))
STEPS = {
    "continued-pretraining": ["sft"],
    "distillation": ["sft", "student", "distillation"],
    "dpo": ["sft", "dpo"],
    "grpo": ["sft", "ppo"],
    "iterative-dpo": ["sft", "preference_pairs_1", "dpo_1", "preference_pairs_2", "dpo_2"],
    "kto": ["sft", "kto"],
    "orpo": ["sft", "dpo"],
    "ppo": ["sft", "feedback", "reward_model", "ppo"],
    "process-reward": ["sft", "process_reward"],
    "rejection-sampling": ["sft", "rejection_sampling", "rejection_sft"],
    "reward-model": ["sft", "reward_model"],
    "sft": ["sft"],
    "simpo": ["sft", "dpo"],
}


def named(path):
    return path.stem


def test_there_is_an_example_of_each_method():
    assert [path.stem for path in EXAMPLES] == sorted(STEPS)


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_an_example_is_valid_and_says_how_it_is_run(path):
    config = load_config(str(path))
    assert step_names(recipe_of("full-rlhf"), config) == STEPS[path.stem]
    assert config.name == f"example-{path.stem}"
    command = f"#   ratchet run {path.relative_to(ROOT)}"
    assert command in path.read_text()
    flows = re.findall(r"--flow (\S+)", path.read_text())
    assert all(step_names(recipe_of(flow), config) for flow in flows)


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_the_data_of_an_example_is_there(path):
    assert missing_sources(load_config(str(path))) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stand-ins and finished steps; examples with the same SFT share it."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def stand_ins(folder):
    return StandIns(folder)


def with_transformers(block):
    """Sampling without vLLM, which takes long to start."""
    if not isinstance(block, RolloutConfig):
        return block
    return block.model_copy(update={"engine": "transformers"})


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_every_step_of_an_example_runs_in_small(path, folder, stand_ins):
    small = rewritten(miniature(load_config(str(path)), stand_ins), with_transformers)
    done = InThisProcess(small, folder / "store")
    recipe_of("full-rlhf")(done)
    assert list(done.refs) == STEPS[path.stem]
    assert all(ref.digest for ref in done.refs.values())
