"""The whole lifecycle, from a base model to a champion, or the part of it that a preset has.

SFT, reward model, rejection sampling, iterative DPO, PPO, further steps, evaluation, promotion.
"""

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
from flows.recipe.recipe_parts import begin, dpo_rounds
from flows.recipe.run_name import name_from


@flow(
    name="full-rlhf",
    flow_run_name=name_from("preset"),
    on_cancellation=[stop_jobs, end_in_mlflow],
    on_failure=[end_in_mlflow],
    validate_parameters=True,
)
def full_rlhf(
    preset: str = "tiny",
    changes: Lines = (),
    force: Lines = (),
    overrides: Overrides = NOTHING,
) -> LifecycleSummary:
    """Take a base model to a champion.

    Args:
        preset: a file of deployments/presets, or the path of a file that ends in `.yaml`.
        changes: changes to the preset as for `ratchet run`, one `key=value` per line, e.g.
            `ppo.kl_coef=0.1`, or `ppo=~` to leave a step out.
        force: steps to do again although they are done.
        overrides: changes to the preset in a form that has every field; an empty field keeps the
            preset's value. `changes` are applied after them.

    Returns:
        The lifecycle's table and the address of its report.
    """
    recipe = open_recipe("full-rlhf", preset, with_changes(overrides, changes), force, steps)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps that the preset has; `ratchet plan` and `force` read their names from here."""
    chain = begin(recipe)

    chain.do("rejection_sampling")
    chain.do("rejection_sft")

    dpo_rounds(recipe, chain)
    chain.do("kto")
    chain.do("distillation")
    chain.do("ppo")
    chain.do_own_steps()

    chain.evaluate_and_promote(with_others=True)
