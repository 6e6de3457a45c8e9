"""The start of a flow run: what must not change under it is resolved once, and kept for a Retry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from pydantic import ValidationError

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.approval import require_deployment
from flows.recipe.given_versions import pin_versions
from flows.recipe.held_out_prompts import require_unseen_prompts
from flows.recipe.left_tasks import end_left_tasks
from flows.recipe.lifecycle_report import publish_so_far
from flows.recipe.outline import StepRunner, outline_of, require_steps
from flows.recipe.round_id import with_round
from flows.recipe.run import Recipe
from flows.recipe.run_logs import tell_foreseen_errors_briefly
from flows.recipe.trained_sources import inherited_sources
from stages.files import write_json
from stages.runtime.sources import missing_sources, pin_revisions
from tasks.connections import Connections, connect
from tasks.registry_tasks import read_champion
from tasks.versions import ModelVersionRef
from training_core.errors import DataError, IntegrityError, RatchetError
from training_core.strict_json import read_object

tell_foreseen_errors_briefly()  # at import, so that it applies before the first line of a flow

ROUNDS = "iterative-dpo"
"""The flow that may start from the champion."""

MAX_RUNS = 20
"""A flow run that was started this often, by an automation or by Retry, is given up.

Without a limit, a run that always crashes would be started again for ever.
"""


def open_recipe(
    flow: str,
    preset: str,
    overrides: Mapping[str, object],
    force: Sequence[str] = (),
    steps: Callable[[StepRunner], None] | None = None,
    *,
    round_id: str | None = None,
) -> Recipe:
    """Resolve preset, overrides, hub revisions and champion; a Retry finds what the run began with.

    Args:
        flow: its name.
        preset: a file of deployments/presets, or the path of a file that ends in `.yaml`.
        overrides: changes to it.
        force: steps to do again although they are done.
        steps: the recipe, whose step names `force` must use and which ends with an evaluation;
            None checks neither names nor the evaluation's prompts.
        round_id: gives this run its own seed for sampling pairs; None keeps the preset's.

    Raises:
        ConfigError: for a wrong preset, key, value or step; if an approval is required and nothing
            could start this run again.
        DataError: if data is not where the config says, or a step trains on prompts of the
            evaluation.
        RatchetError: if the run was started too often.
    """
    if (count := int(flow_run.run_count or 1)) > MAX_RUNS:
        raise RatchetError(
            f"this run was started {count} times, the limit is {MAX_RUNS}; look at its log, "
            "then start a new run, which continues where this one ended"
        )
    if count > 1:
        with get_client(sync_client=True) as client:
            end_left_tasks(client, UUID(str(flow_run.id)))
    connections, forced = connect(), tuple(force)
    plan = connections.store.root / "plans" / f"{flow_run.id}.json"
    if plan.exists():
        config, champion = _read_plan(plan)
        _require_sources(preset, config)
    else:
        config = with_round(load_config(preset, overrides), round_id)
        require_deployment(config.promotion.approval)
        if steps is not None:
            require_steps(forced, [*outline_of(steps, config).refs])
        config, champion = _resolve(config, connections)
        _require_sources(preset, config)
        if steps is not None:
            starts = (champion,) if champion and starts_from_champion(flow, config) else ()
            require_unseen_prompts(config, inherited_sources(config, connections, *starts))
        _write_plan(plan, config, champion)
    began = plan.stat().st_mtime
    return Recipe(flow, config, connections, forced, champion, began=began, report=publish_so_far)


def starts_from_champion(flow: str, config: LifecycleConfig) -> bool:
    """Whether the first policy that a flow trains is the champion."""
    return flow == ROUNDS and config.iterative_dpo.start == "champion"


def _require_sources(preset: str, config: LifecycleConfig) -> None:
    if missing := missing_sources(config):
        raise DataError(f"preset '{preset}' cannot run here:\n  " + "\n  ".join(missing))


def _resolve(
    config: LifecycleConfig, connections: Connections
) -> tuple[LifecycleConfig, ModelVersionRef | None]:
    pinned = pin_versions(pin_revisions(config), connections)
    _, champion = read_champion(connections, f"{config.name}.policy")
    return pinned, champion


def _read_plan(path: Path) -> tuple[LifecycleConfig, ModelVersionRef | None]:
    remedy = "delete it; a Retry then resolves preset and champion again"
    kept = read_object(path, remedy=remedy)
    try:
        champion = kept.get("champion")
        return (
            LifecycleConfig.model_validate(kept.get("config")),
            ModelVersionRef.model_validate(champion) if champion else None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise IntegrityError(
            f"{path} is not the plan of a run: {field}: {first['msg']}; {remedy}"
        ) from error


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
