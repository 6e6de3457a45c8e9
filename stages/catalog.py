"""The stages, one line each: where the page is, and its version.

Raise a version when a stage gives other results for the same config; a golden-value test says when
that is.
"""

from __future__ import annotations

from difflib import get_close_matches

from stages.contract import StageSpec
from training_core.errors import ConfigError

STAGES: dict[str, StageSpec] = {
    spec.name: spec
    for spec in (
        StageSpec("sft", "stages.sft", 1, optional=("policy", "dataset")),
        StageSpec(
            "reward_model", "stages.reward_model", 1, required=("policy",), optional=("dataset",)
        ),
        StageSpec(
            "rejection_sampling", "stages.rejection_sampling", 1, ("policy",), ("reward_model",)
        ),
        StageSpec("preference_pairs", "stages.preference_pairs", 1, ("policy",), ("reward_model",)),
        StageSpec("process_reward", "stages.process_reward", 1, ("policy",), ("dataset",)),
        StageSpec("dpo", "stages.dpo", 1, ("policy",), ("reference", "dataset"), ("dataset_",)),
        StageSpec("kto", "stages.kto", 1, ("policy", "reference"), ("dataset",)),
        StageSpec("distillation", "stages.distillation", 1, ("policy", "teacher"), ("dataset",)),
        StageSpec("ppo", "stages.ppo", 1, ("policy", "reference"), ("reward_model",)),
        StageSpec(
            "evaluation",
            "stages.evaluation",
            1,
            ("policy", "baseline"),
            ("reward_model",),
            ("policy_",),
        ),
    )
}


def find_stage(name: str) -> StageSpec:
    """Return the stage called `name`.

    Raises:
        ConfigError: if there is none; the message names the nearest.
    """
    if name not in STAGES:
        near = get_close_matches(name, STAGES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(STAGES)}"
        raise ConfigError(f"unknown stage '{name}'; {hint}")
    return STAGES[name]
