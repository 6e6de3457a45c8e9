"""The start of a flow run: what must not change under it is resolved once, and kept for a Retry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.outline import StepRunner, require_steps, step_names
from flows.recipe.run import Recipe
from stages.files import write_json
from stages.runtime.sources import missing_sources, pin_revisions
from tasks.connections import Connections, connect
from tasks.registry_tasks import read_champion
from tasks.versions import ModelVersionRef
from training_core.errors import DataError, RatchetError

MAX_RUNS = 20
"""A flow run that was started this often, by an automation or by Retry, is given up.

Without a limit, a run that always crashes would be started again for ever.
"""


def open_recipe(
    flow: str,
    preset: str,
    overrides: BaseModel | Mapping[str, object] | None,
    force: Sequence[str] | None = None,
    steps: Callable[[StepRunner], None] | None = None,
) -> Recipe:
    """Resolve preset, overrides, hub revisions and champion; a Retry finds what the run began with.

    Args:
        flow: its name.
        preset: a file of deployments/presets.
        overrides: changes to it.
        force: steps to do again although they are done.
        steps: the recipe, whose step names `force` must use; None checks no name.

    Raises:
        ConfigError: for a wrong preset, key, value or step.
        DataError: if data is not where the config says.
        RatchetError: if the run was started too often.
    """
    if (count := int(flow_run.run_count or 1)) > MAX_RUNS:
        raise RatchetError(
            f"this run was started {count} times and is given up; look at its log, "
            "then start a new run, which continues where this one ended"
        )
    connections, forced = connect(), tuple(force or ())
    plan = connections.store.root / "plans" / f"{flow_run.id}.json"
    if plan.exists():
        config, champion = _read_plan(plan)
    else:
        config = load_config(preset, _as_mapping(overrides))
        if steps is not None:
            require_steps(forced, step_names(steps, config))
        config, champion = _resolve(config, connections)
        _write_plan(plan, config, champion)
    if missing := missing_sources(config):
        raise DataError(f"preset '{preset}' cannot run here:\n  " + "\n  ".join(missing))
    return Recipe(flow, config, connections, forced, champion)


def _as_mapping(
    overrides: BaseModel | Mapping[str, object] | None,
) -> Mapping[str, object] | None:
    if isinstance(overrides, BaseModel):
        return overrides.model_dump(exclude_unset=True)
    return overrides


def _resolve(
    config: LifecycleConfig, connections: Connections
) -> tuple[LifecycleConfig, ModelVersionRef | None]:
    pinned = pin_revisions(config)
    _, champion = read_champion(connections, f"{config.name}.policy")
    return pinned, champion


def _read_plan(path: Path) -> tuple[LifecycleConfig, ModelVersionRef | None]:
    kept = json.loads(path.read_text())
    champion = kept["champion"] and ModelVersionRef.model_validate(kept["champion"])
    return LifecycleConfig.model_validate(kept["config"]), champion


def _write_plan(path: Path, config: LifecycleConfig, champion: ModelVersionRef | None) -> None:
    content = {
        "config": config.model_dump(mode="json"),
        "champion": champion.model_dump(mode="json") if champion else None,
    }
    write_json(path, content, indent=2)
    text = f"```json\n{json.dumps(content['config'], indent=2)}\n```"
    create_markdown_artifact(
        text, key="resolved-config", description=f"preset {config.name}, resolved"
    )
