"""Rounds of iterative DPO, each from the last one's policy; made for a schedule."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.config.form import NOTHING, Lines
from flows.config.lifecycle_config import Overrides
from flows.config.presets import with_changes
from flows.recipe.cancellation import stop_jobs
from flows.recipe.flow_end import end_in_mlflow
from flows.recipe.lifecycle_report import LifecycleSummary, publish_report
from flows.recipe.opening import open_recipe
from flows.recipe.outline import StepRunner
from flows.recipe.recipe_parts import begin, dpo_rounds
from flows.recipe.round_id import scheduled_date
from flows.recipe.run_name import name_from
from flows.recipe.schedule import reason_to_skip


@flow(
    name="iterative-dpo",
    flow_run_name=name_from("preset"),
    on_cancellation=[stop_jobs, end_in_mlflow],
    on_failure=[end_in_mlflow],
)
def iterative_dpo(
    preset: str = "tiny",
    changes: Lines = (),
    force: Lines = (),
    round_id: str = "",
    overrides: Overrides = NOTHING,
) -> LifecycleSummary | State:
    """Improve a policy by the preset's number of rounds, and promote it if it beats the champion.

    SFT and the reward model are made first if they are not there. With
    `iterative_dpo.start: champion` the first round starts from the champion. If that has not moved
    since the last run, a run of a schedule samples new responses from it, because its date is its
    `round_id`; for a run without `round_id` every step is done already and is reused.

    Args:
        preset: a file of deployments/presets, or the path of a file that ends in `.yaml`.
        changes: changes to the preset as for `ratchet run`, one `key=value` per line, e.g.
            `ppo.kl_coef=0.1`, or `ppo=~` to leave a step out.
        force: steps to do again although they are done.
        round_id: any text; runs with different ones sample different responses. Empty, it is the
            scheduled date for a run of a schedule, and nothing for any other run.
        overrides: changes to the preset in a form that has every field; an empty field keeps the
            preset's value. `changes` are applied after them.

    Returns:
        The lifecycle's table and the address of its report; the state `Skipped`, with the reason,
        for a scheduled run that was missed, if a later one is due, too, and for one that is due
        while the candidate of an earlier run waits for a person's approval.
    """
    if reason := reason_to_skip():
        return Completed(name="Skipped", message=reason)
    this_round = round_id or scheduled_date()
    wanted = with_changes(overrides, changes)
    recipe = open_recipe("iterative-dpo", preset, wanted, force, steps, round_id=this_round)
    steps(recipe)
    return publish_report(recipe)


def steps(recipe: StepRunner) -> None:
    """Do the steps; `ratchet plan` and `force` read their names from here, too."""
    chain = begin(recipe)
    chain.require("iterative-dpo", "preference_pairs", "dpo")
    starts_from_champion = recipe.config.iterative_dpo.start == "champion"
    dpo_rounds(recipe, chain, recipe.champion_ref() if starts_from_champion else None)
    chain.evaluate_and_promote()
