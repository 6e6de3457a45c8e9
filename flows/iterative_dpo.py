"""Rounds of iterative DPO, each from the last one's policy; made for a schedule."""

from __future__ import annotations

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.cancellation import stop_jobs
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.outline import StepRunner
from flows.recipe.recipe_parts import dpo_rounds, evaluate, sft_and_reward_model


@flow(name="iterative-dpo", flow_run_name="iterative-dpo-{preset}", on_cancellation=[stop_jobs])
def iterative_dpo(
    preset: str = "tiny", overrides: Overrides | None = None, force: list[str] | None = None
) -> LifecycleSummary:
    """Improve a policy by the preset's number of rounds, and promote it if it beats the champion.

    SFT and the reward model are made first if they are not there. With
    `iterative_dpo.start: champion` the first round starts from the champion; if that has not moved
    since the last run, every step is done already and is reused.

    Args:
        preset: a file of deployments/presets.
        overrides: changes to it; a key that is left out keeps its value.
        force: steps to do again although they are done.

    Returns:
        The lifecycle's table and the address of its report.
    """
    recipe = open_recipe("iterative-dpo", preset, overrides, force, steps)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps; `ratchet plan` and `force` read their names from here, too."""
    config = recipe.config
    sft, reward_model = sft_and_reward_model(recipe)

    wants_champion = config.iterative_dpo.start == "champion"
    start = (recipe.champion_ref() if wants_champion else None) or sft
    policy = dpo_rounds(recipe, start, sft=sft, reward_model=reward_model)[-1]

    evaluation = evaluate(recipe, policy, sft=sft, reward_model=reward_model)
    recipe.promote_if_better(policy, evaluation, reward_model)
