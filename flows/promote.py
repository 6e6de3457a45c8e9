"""Promotion by hand: judge a model version against the champion, or roll back to an older one."""

from __future__ import annotations

from typing import Literal

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.cancellation import stop_jobs
from flows.recipe.opening import open_recipe
from flows.recipe.recipe_parts import evaluate
from flows.recipe.run import Recipe
from tasks.refs import StageRef
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
    """Make a model version champion if it beats the champion, or roll back to a former champion.

    Args:
        preset: a file of deployments/presets; its name is that of the policies.
        version: number or alias of the version, e.g. `7` or `candidate`.
        action: `promote` evaluates it against the SFT policy and the champion first; `rollback`
            needs no evidence, but takes only a version that has been champion.
        decided_by: who decides, for the ledger; not verified, since Prefect's open-source
            server has no users.
        reason: why, for people who read the ledger.
        overrides: changes to the preset, e.g. the gate's thresholds.

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
    return _judge(recipe, target, who=decided_by or None, why=reason or None)


def _judge(recipe: Recipe, target: ModelVersionRef, *, who: str | None, why: str | None) -> bool:
    candidate = stage_ref_of(target, recipe.connections)
    sft = _newest(recipe, "policy@sft")
    reward_model = _newest(recipe, "reward-model@reward_model")
    evaluation = evaluate(recipe, candidate, sft=sft, reward_model=reward_model)
    return recipe.promote_if_better(candidate, evaluation, reward_model, who=who, why=why)


def _newest(recipe: Recipe, alias: str) -> StageRef:
    version = recipe.connections.registry.models.resolve(f"models:/{recipe.config.name}.{alias}")
    return stage_ref_of(version, recipe.connections)
