"""Promotion by hand: judge a model version, force it, or roll back to an older champion."""

from __future__ import annotations

from typing import Annotated, Literal

from prefect import flow
from pydantic import WithJsonSchema

from flows.config.form import NOTHING, Lines
from flows.config.given_models import RegisteredModelConfig
from flows.config.lifecycle_config import Overrides
from flows.config.presets import with_changes
from flows.full_rlhf import steps
from flows.recipe.cancellation import stop_jobs
from flows.recipe.flow_end import end_in_mlflow
from flows.recipe.held_out_prompts import require_unseen_prompts
from flows.recipe.opening import open_recipe
from flows.recipe.outline import outline_of
from flows.recipe.run import Recipe
from flows.recipe.run_name import name_from
from flows.recipe.trained_sources import inherited_sources
from tasks.refs import StageRef
from tasks.registry_tasks import force, read_champion, roll_back, stage_ref_of
from tasks.versions import ModelVersionRef
from training_core.errors import ConfigError

VersionName = Annotated[int | str, WithJsonSchema({"type": "string"})]
"""Prefect's page has one text field for it; its command line makes a number of `-p version=7`."""


BY_HAND = {"rollback": (roll_back, "promote", "rollback"), "force": (force, "", "")}
"""Action without evidence -> its task, and the name and the reason that stand in for none given."""


@flow(
    name="promote",
    flow_run_name=name_from("preset", "action", "version"),
    on_cancellation=[stop_jobs, end_in_mlflow],
    on_failure=[end_in_mlflow],
    on_completion=[end_in_mlflow],
)
def promote(  # noqa: PLR0917 - Prefect makes a form of these, which a person fills in
    preset: str = "tiny",
    version: VersionName = "candidate",
    action: Literal["promote", "force", "rollback"] = "promote",
    decided_by: str = "",
    reason: str = "",
    changes: Lines = (),
    overrides: Overrides = NOTHING,
) -> bool:
    """Make a model version champion if it beats the champion, or roll back to a former champion.

    Args:
        preset: a file of deployments/presets; its name is that of the policies.
        version: number or alias of the version, e.g. `7` or `candidate`.
        action: `promote` evaluates it against the SFT policy and the champion first; `rollback`
            needs no evidence, but takes only a version that has been champion; `force` needs no
            evidence either, but a name and a reason.
        decided_by: who decides, for the ledger; not verified, since Prefect's open-source
            server has no users.
        reason: why, for people who read the ledger.
        changes: changes to the preset as for `ratchet run`, one `key=value` per line, e.g.
            `promotion.min_win_rate_low=0.55`.
        overrides: changes to the preset in a form that has every field; an empty field keeps the
            preset's value. `changes` are applied after them.

    Returns:
        Whether the version is champion now.
    """
    recipe = open_recipe("promote", preset, with_changes(overrides, changes))
    registry, name = recipe.connections.registry, recipe.policy_name
    is_number = str(version).isdigit()
    reference = f"models:/{name}{'/' if is_number else '@'}{version}"
    target = registry.models.resolve(reference)
    if action in BY_HAND:
        based_on, _ = read_champion(recipe.connections, name)
        act, who, why = BY_HAND[action]
        who, why = decided_by or who, reason or why
        act(recipe.connections, name, target.version, based_on=based_on, who=who, why=why)
        return True
    return _judge(recipe, target, who=decided_by or None, why=reason or None)


def _judge(recipe: Recipe, target: ModelVersionRef, *, who: str | None, why: str | None) -> bool:
    inherited = inherited_sources(recipe.config, recipe.connections, target)
    require_unseen_prompts(recipe.config, inherited)
    compared = outline_of(steps, recipe.config).inputs.get("evaluation")
    if recipe.config.evaluation is None or compared is None:
        raise ConfigError(
            f"the preset {recipe.config.name} has no block `evaluation`, so nothing can be judged; "
            "add it"
        )
    candidate = stage_ref_of(target, recipe.connections)
    baseline = _newest(recipe, "policy", compared["baseline"])
    reward_model = None
    if "reward_model" in compared:
        reward_model = _newest(recipe, "reward-model", compared["reward_model"])
    evaluation = recipe.run(
        "evaluation",
        recipe.config.evaluation,
        policy=candidate,
        baseline=baseline,
        reward_model=reward_model,
    )
    return recipe.promote_if_better(candidate, evaluation, reward_model, who=who, why=why)


def _newest(recipe: Recipe, suffix: str, step: str) -> StageRef:
    """Return what a step has made last, or the registered model given in its place."""
    given = recipe.config.given.get(step)
    if given is not None and isinstance(given.model, RegisteredModelConfig):
        return recipe.registered(step, given.model.uri, given.kind_as(step))
    name = f"models:/{recipe.config.name}.{suffix}@{step}"
    return stage_ref_of(recipe.connections.registry.models.resolve(name), recipe.connections)
