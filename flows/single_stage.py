"""A single stage; its inputs are finished stages, named by model version or stage key."""

from __future__ import annotations

from typing import Annotated

from prefect import flow
from pydantic import WithJsonSchema

from flows.config.form import NOTHING, Lines
from flows.config.lifecycle_config import Overrides
from flows.config.presets import with_changes
from flows.recipe.cancellation import stop_jobs
from flows.recipe.flow_end import end_in_mlflow
from flows.recipe.opening import open_recipe
from flows.recipe.outline import block_names, require_steps
from flows.recipe.run import Recipe
from flows.recipe.run_name import name_from
from tasks.refs import StageRef, ref_of
from tasks.registry_tasks import stage_ref_of
from training_core.errors import ConfigError
from training_core.names import is_name

StepName = Annotated[str, WithJsonSchema({"type": "string", "enum": block_names()})]
"""A block of the preset; Prefect's page lists them. The flow itself names the nearest one."""


@flow(
    name="stage",
    flow_run_name=name_from("preset", "step"),
    on_cancellation=[stop_jobs, end_in_mlflow],
    on_failure=[end_in_mlflow],
    on_completion=[end_in_mlflow],
)
def stage(  # noqa: PLR0917 - Prefect makes a form of these, which a person fills in
    step: StepName,
    preset: str = "tiny",
    changes: Lines = (),
    inputs: dict[str, str] = NOTHING,
    force: bool = False,
    overrides: Overrides = NOTHING,
) -> StageRef:
    """Do one step of a preset.

    Args:
        step: a block of the preset, e.g. `sft` or `ppo`, or one of its `steps`.
        preset: a file of deployments/presets, or the path of a file that ends in `.yaml`.
        changes: changes to the preset as for `ratchet run`, one `key=value` per line, e.g.
            `ppo.kl_coef=0.1`, or `ppo=~` to leave a step out.
        inputs: by role, `models:/<name>@<alias>`, `models:/<name>/<version>`, or
            `<stage>/<stage key>` for a dataset.
        force: do it again although it is done.
        overrides: changes to the preset in a form that has every field; an empty field keeps the
            preset's value. `changes` are applied after them.

    Returns:
        The finished step.
    """
    wanted = with_changes(overrides, changes)
    recipe = open_recipe("stage", preset, wanted, [step] if force else [])
    require_steps([step], [*block_names(), *recipe.config.steps])
    config = recipe.config.step_config(step)
    if config is None:
        raise ConfigError(f"preset '{preset}' has no block '{step}'; write one, or override it")
    given = {role: _resolve(recipe, role, name) for role, name in inputs.items()}
    return recipe.run(step, config, **given)


def _resolve(recipe: Recipe, role: str, name: str) -> StageRef:
    connections = recipe.connections
    if name.startswith("models:/"):
        return stage_ref_of(connections.registry.models.resolve(name), connections)
    stage_name, _, key = name.partition("/")
    is_reference = is_name(stage_name) and is_name(key)
    manifest = connections.store.find(stage_name, key) if is_reference else None
    if manifest is None:
        raise ConfigError(
            f"input '{role}': expected models:/<name>@<alias>, models:/<name>/<version> or "
            f"<stage>/<stage key> of a finished stage, found '{name}'; correct it"
        )
    return ref_of(manifest, role, is_reused=True)
