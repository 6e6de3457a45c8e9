"""RAFT: rounds of sampling, selecting and SFT, each from the last one's policy."""

from __future__ import annotations

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.cancellation import stop_jobs
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.outline import StepRunner
from flows.recipe.recipe_parts import evaluate, raft_rounds, sft_and_reward_model


@flow(name="raft", flow_run_name="raft-{preset}", on_cancellation=[stop_jobs])
def raft(
    preset: str = "tiny", overrides: Overrides | None = None, force: list[str] | None = None
) -> LifecycleSummary:
    """Improve a policy by imitating its own best responses, and promote it if it wins.

    SFT and the reward model are made first if they are not there.

    Args:
        preset: a file of deployments/presets.
        overrides: changes to it; a key that is left out keeps its value.
        force: steps to do again although they are done.

    Returns:
        The lifecycle's table and the address of its report.

    Source:
        Dong et al. 2023, https://arxiv.org/abs/2304.06767
    """
    recipe = open_recipe("raft", preset, overrides, force, steps)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps; `ratchet plan` and `force` read their names from here, too."""
    sft, reward_model = sft_and_reward_model(recipe)
    policy = raft_rounds(recipe, sft, reward_model=reward_model)
    evaluation = evaluate(recipe, policy, sft=sft, reward_model=reward_model)
    recipe.promote_if_better(policy, evaluation, reward_model)
