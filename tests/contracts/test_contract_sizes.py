"""Presets of published models fit the GPUs that they name, by the estimate."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from flows.config.presets import PRESETS, ROOT, load_config, preset_names
from stages.configs.block import StageConfig
from stages.sizes.estimates import size_of
from stages.sizes.stage_size import GIB
from tests.training_core.sizes.published_shapes import (
    GEMMA_2_9B,
    GEMMA_7B,
    LLAMA_3_8B,
    LLAMA_3_70B,
    QWEN_2_5_7B,
    QWEN_2_5_32B,
    QWEN_3_8B,
)
from training_core.sizes.decoder_config import decoder_of

SHAPES = {
    "llama3-8b": LLAMA_3_8B,
    "llama3-70b": LLAMA_3_70B,
    "llama31-8b-tulu3": LLAMA_3_8B,  # Llama 3.1 has the shapes of Llama 3
    "llama31-8b-lora": LLAMA_3_8B,
    "llama31-70b-qlora": LLAMA_3_70B,
    "qwen25-7b": QWEN_2_5_7B,
    "qwen25-7b-grpo": QWEN_2_5_7B,
    "qwen25-32b-qlora": QWEN_2_5_32B,
    "qwen3-8b-lora": QWEN_3_8B,
    "gemma-7b": GEMMA_7B,
    "gemma2-9b-simpo": GEMMA_2_9B,
}
DECODERS = {preset: decoder_of(shapes, preset) for preset, shapes in SHAPES.items()}
EIGHT_B = DECODERS["llama3-8b"]
WHOLE_LIFECYCLES = ("llama3-8b", "llama3-70b")
ONE_GPU = ("llama31-8b-lora", "qwen25-32b-qlora", "qwen3-8b-lora")
GPUS = dict.fromkeys(SHAPES, 8) | {"llama3-70b": 32} | dict.fromkeys(ONE_GPU, 1)
POLICIES = 4
"""Those of an evaluation of `full-rlhf`: baseline, champion, the policy, and one more."""
OF_PRESET = {
    preset: {
        n: block for n, block in dict(load_config(preset)).items() if isinstance(block, StageConfig)
    }
    for preset in DECODERS
}
STEPS = OF_PRESET["llama3-8b"]
EVERY_STEP = [(preset, step) for preset, steps in OF_PRESET.items() for step in steps]


def test_every_preset_for_gpus_is_among_them():
    def has_gpus(preset):
        stages = load_config(preset).stages().values()
        return any(stage.resources.num_gpus for stage in stages)

    assert {preset for preset in preset_names() if has_gpus(preset)} == set(SHAPES)


@pytest.mark.parametrize("preset", WHOLE_LIFECYCLES)
def test_the_preset_has_these_steps(preset):
    assert set(OF_PRESET[preset]) == {
        "sft", "reward_model", "rejection_sampling", "rejection_sft", "preference_pairs", "dpo",
        "ppo", "evaluation",
    }  # fmt: skip


@pytest.mark.parametrize(("preset", "step"), EVERY_STEP)
def test_every_step_fits_its_nodes(preset, step):
    size = size_of(OF_PRESET[preset][step], DECODERS[preset], policies=POLICIES)
    assert size.limit_gib == pytest.approx(0.9 * 79)
    assert size.fits
    assert size.workers * size.num_gpus + size.gpus_apart <= GPUS[preset]
    # of 1 TB per node, with room for the files of a model
    on_a_node = min(size.workers, 8 / size.num_gpus) * size.together.host / GIB
    assert on_a_node < 800


@pytest.mark.parametrize(
    "without",
    [
        {"frozen_models": {"dtype": "bfloat16"}},
        {"engine": {"name": "deepspeed", "zero_stage": 3}},
        {"engine": {"name": "deepspeed", "zero_stage": 2, "offload_optimizer": True}},
    ],
)
def test_ppo_of_llama3_70b_needs_each_of_its_divisions(without):
    ppo = OF_PRESET["llama3-70b"]["ppo"]
    config = ppo.model_dump(mode="json") | without
    assert not size_of(type(ppo).model_validate(config), DECODERS["llama3-70b"]).fits


@pytest.mark.parametrize(("preset", "step"), EVERY_STEP)
def test_the_preset_states_what_the_estimate_says(preset, step):
    text = (PRESETS / f"{preset}.yaml").read_text()
    parts = size_of(OF_PRESET[preset][step], DECODERS[preset], policies=POLICIES).together
    (line,) = re.findall(rf"^#   {step} .*$", text, re.MULTILINE)
    numbers = [float(n) for n in re.findall(r"\d+\.\d", line)]
    used = [size for size in (*parts.on_gpu.values(), parts.total) if size]
    assert numbers == [round(size / GIB, 1) for size in used]


def test_a_plain_engine_would_not_fit():
    config = STEPS["sft"].model_dump(mode="json")
    config["training"]["engine"] = {"name": "torch"}
    assert not size_of(type(STEPS["sft"]).model_validate(config), EIGHT_B).fits


@pytest.mark.parametrize(
    "without", [{"frozen_models": {"dtype": "bfloat16"}}, {"engine": {"name": "deepspeed"}}]
)
def test_ppo_needs_both_offloads(without):
    config = STEPS["ppo"].model_dump(mode="json") | without
    assert not size_of(type(STEPS["ppo"]).model_validate(config), EIGHT_B).fits


def test_estimates_import_nothing_heavy():
    code = (
        "import sys; from flows.config.presets import load_config; "
        "from stages.sizes import estimates, model_at_hand, remedies; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
