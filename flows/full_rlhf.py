"""The whole lifecycle, from a base model to a champion.

SFT, reward model, rejection sampling, iterative DPO, PPO, evaluation, promotion.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.lifecycle_report import publish_report
from flows.recipe.outline import StepRunner, step_names
from flows.recipe.recipe_parts import dpo_rounds, sft_and_reward_model
from flows.recipe.run import open_recipe, stop_jobs


@flow(
    name="full-rlhf",
    flow_run_name="full-rlhf-{preset}",
    on_cancellation=[stop_jobs],
    validate_parameters=True,
)
def full_rlhf(
    preset: str = "tiny", overrides: Overrides | None = None, force: list[str] | None = None
) -> dict[str, Any]:
    """Take a base model to a champion.

    Args:
        preset: a file of deployments/presets.
        overrides: changes to it; what is left out stays.
        force: steps to do again although they are done.

    Returns:
        The lifecycle's table, row by row.
    """
    recipe = open_recipe("full-rlhf", preset, overrides, force or [], partial(step_names, steps))
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """The recipe itself; `ratchet plan` walks it too, without doing anything."""
    config = recipe.config
    sft, reward_model = sft_and_reward_model(recipe)

    best = recipe.run(
        "rejection_sampling", config.rejection_sampling, policy=sft, reward_model=reward_model
    )
    rejection_sft = recipe.run("rejection_sft", config.rejection_sft, policy=sft, dataset=best)

    dpo = dpo_rounds(recipe, rejection_sft, sft=sft, reward_model=reward_model)
    ppo = recipe.run("ppo", config.ppo, policy=dpo, reference=dpo, reward_model=reward_model)

    evaluation = recipe.run(
        "evaluation",
        config.evaluation,
        policy=ppo,
        baseline=sft,
        reward_model=reward_model,
        policy_rejection_sft=rejection_sft,
        **{f"policy_{step}": ref for step, ref in recipe.refs.items() if ref.stage == "dpo"},
    )
    recipe.promote_if_better(ppo, evaluation, reward_model)
