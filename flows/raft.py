"""RAFT: rounds of sampling, selecting and SFT, each from the last one's policy."""

from __future__ import annotations

from prefect import flow

from flows.config.form import NOTHING, Lines
from flows.config.lifecycle_config import Overrides
from flows.config.presets import with_changes
from flows.recipe.cancellation import stop_jobs
from flows.recipe.flow_end import end_in_mlflow
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.outline import StepRunner
from flows.recipe.recipe_parts import begin, raft_rounds
from flows.recipe.run_name import name_from


@flow(
    name="raft",
    flow_run_name=name_from("preset"),
    on_cancellation=[stop_jobs, end_in_mlflow],
    on_failure=[end_in_mlflow],
)
def raft(
    preset: str = "tiny",
    changes: Lines = (),
    force: Lines = (),
    overrides: Overrides = NOTHING,
) -> LifecycleSummary:
    """Improve a policy by imitating its own best responses, and promote it if it wins.

    SFT and the reward model are made first if they are not there.

    Args:
        preset: a file of deployments/presets, or the path of a file that ends in `.yaml`.
        changes: changes to the preset as for `ratchet run`, one `key=value` per line, e.g.
            `ppo.kl_coef=0.1`, or `ppo=~` to leave a step out.
        force: steps to do again although they are done.
        overrides: changes to the preset in a form that has every field; an empty field keeps the
            preset's value. `changes` are applied after them.

    Returns:
        The lifecycle's table and the address of its report.

    Source:
        Dong et al. 2023, https://arxiv.org/abs/2304.06767
    """
    recipe = open_recipe("raft", preset, with_changes(overrides, changes), force, steps)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps; `ratchet plan` and `force` read their names from here, too."""
    chain = begin(recipe)
    chain.require("raft", "rejection_sampling", "rejection_sft")
    raft_rounds(recipe, chain)
    chain.evaluate_and_promote()
