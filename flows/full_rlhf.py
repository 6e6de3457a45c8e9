"""The whole lifecycle, from a base model to a champion.

SFT, reward model, rejection sampling, iterative DPO, PPO, evaluation, promotion.
"""

from __future__ import annotations

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.cancellation import stop_jobs
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.outline import StepRunner
from flows.recipe.recipe_parts import dpo_rounds, evaluate, sft_and_reward_model


@flow(
    name="full-rlhf",
    flow_run_name="full-rlhf-{preset}",
    on_cancellation=[stop_jobs],
    validate_parameters=True,
)
def full_rlhf(
    preset: str = "tiny", overrides: Overrides | None = None, force: list[str] | None = None
) -> LifecycleSummary:
    """Take a base model to a champion.

    Args:
        preset: a file of deployments/presets.
        overrides: changes to it; a key that is left out keeps its value.
        force: steps to do again although they are done.

    Returns:
        The lifecycle's table and the address of its report.
    """
    recipe = open_recipe("full-rlhf", preset, overrides, force, steps)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps; `ratchet plan` and `force` read their names from here, too."""
    config = recipe.config
    sft, reward_model = sft_and_reward_model(recipe)

    best = recipe.run(
        "rejection_sampling", config.rejection_sampling, policy=sft, reward_model=reward_model
    )
    rejection_sft = recipe.run("rejection_sft", config.rejection_sft, policy=sft, dataset=best)

    rounds = dpo_rounds(recipe, rejection_sft, sft=sft, reward_model=reward_model)
    dpo = rounds[-1]
    ppo = recipe.run("ppo", config.ppo, policy=dpo, reference=dpo, reward_model=reward_model)

    others = [rejection_sft, *rounds]
    evaluation = evaluate(recipe, ppo, sft=sft, reward_model=reward_model, others=others)
    recipe.promote_if_better(ppo, evaluation, reward_model)
