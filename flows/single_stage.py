"""Any one stage alone, on finished stages that are named by model version or stage key."""

from __future__ import annotations

from prefect import flow

from flows.config.lifecycle_config import Overrides
from flows.recipe.outline import block_names, require_steps
from flows.recipe.run import Recipe, open_recipe, stop_jobs
from tasks.refs import StageRef, ref_of
from tasks.registry_tasks import stage_ref_of
from training_core.errors import ConfigError


@flow(name="stage", flow_run_name="stage-{step}-{preset}", on_cancellation=[stop_jobs])
def stage(
    step: str,
    preset: str = "tiny",
    inputs: dict[str, str] | None = None,
    overrides: Overrides | None = None,
    force: bool = False,
) -> StageRef:
    """Do one step of a preset.

    Args:
        step: a block of the preset, as `sft` or `ppo`.
        preset: a file of deployments/presets.
        inputs: by role, `models:/<name>@<alias>`, `models:/<name>/<version>`, or
            `<stage>/<stage key>` for a dataset.
        overrides: changes to the preset.
        force: do it again although it is done.

    Returns:
        The finished step.
    """
    require_steps([step], block_names())
    recipe = open_recipe(
        "stage", preset, overrides, [step] if force else [], lambda _: block_names()
    )
    config = getattr(recipe.config, step)
    if config is None:
        raise ConfigError(f"preset '{preset}' has no block '{step}'; write one, or override it")
    given = {role: _resolve(recipe, role, name) for role, name in (inputs or {}).items()}
    return recipe.run(step, config, **given)


def _resolve(recipe: Recipe, role: str, name: str) -> StageRef:
    connections = recipe.connections
    if name.startswith("models:/"):
        return stage_ref_of(connections.registry.models.resolve(name), connections)
    stage_name, _, key = name.partition("/")
    manifest = connections.store.find(stage_name, key)
    if manifest is None:
        raise ConfigError(
            f"input '{role}': expected models:/<name>@<alias>, models:/<name>/<version> or "
            f"<stage>/<stage key> of a finished stage, found '{name}'"
        )
    return ref_of(manifest, role, is_reused=True)
