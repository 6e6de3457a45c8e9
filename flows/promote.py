"""Promotion by hand: weigh a model version against the champion, or roll back to an older one."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.run import Recipe, open_recipe, stop_jobs
from tasks.registry_tasks import read_champion, roll_back, stage_ref_of
from tasks.versions import ModelVersionRef


@flow(name="promote", flow_run_name="{action}-{preset}-{version}", on_cancellation=[stop_jobs])
def promote(  # noqa: PLR0917 - Prefect makes a form of these, which a person fills in
    preset: str = "tiny",
    version: str = "candidate",
    action: Literal["promote", "rollback"] = "promote",
    decided_by: str = "",
    reason: str = "",
    overrides: Overrides | None = None,
) -> bool:
    """Move the champion on evidence, or back.

    Args:
        preset: whose policies are meant.
        version: number or alias of the version, as `7` or `candidate`.
        action: `promote` evaluates it against the SFT policy and the champion first; `rollback`
            needs no evidence, but takes only a version that has been champion.
        decided_by: who decides; a claim, since Prefect's open-source server knows no identities.
        reason: why, for people who read the ledger.
        overrides: changes to the preset, such as the gate's thresholds.

    Returns:
        Whether the version is champion now.
    """
    recipe = open_recipe("promote", preset, overrides)
    registry, name = recipe.connections.registry, recipe.policy_name
    reference = f"models:/{name}/{version}" if version.isdigit() else f"models:/{name}@{version}"
    target = registry.models.resolve(reference)
    if action == "rollback":
        based_on, _ = read_champion(recipe.connections, name)
        roll_back(
            recipe.connections,
            name,
            target.version,
            based_on=based_on,
            who=decided_by or "promote",
            why=reason or "rollback",
        )
        return True
    return _weigh(recipe, target, who=decided_by or None, why=reason or None)


def _weigh(recipe: Recipe, target: ModelVersionRef, *, who: str | None, why: str | None) -> bool:
    registry, connections, name = (
        recipe.connections.registry,
        recipe.connections,
        recipe.config.name,
    )
    candidate = stage_ref_of(target, connections)
    sft = stage_ref_of(registry.models.resolve(f"models:/{name}.policy@sft"), connections)
    newest_reward_model = registry.models.resolve(f"models:/{name}.reward-model@reward_model")
    reward_model = stage_ref_of(newest_reward_model, connections)
    evaluation = recipe.run(
        "evaluation",
        recipe.config.evaluation,
        policy=candidate,
        baseline=sft,
        reward_model=reward_model,
    )
    return recipe.promote_if_better(candidate, evaluation, reward_model, who=who, why=why)
