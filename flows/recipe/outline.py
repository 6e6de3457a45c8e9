"""Which steps a recipe has, without doing any: what `force` and the flow `stage` may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from flows.config.lifecycle_config import LifecycleConfig
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.explanation import models_in
from stages.configs.stage_record import ArtifactKind
from tasks.refs import StageRef, pending_ref
from training_core.errors import ConfigError

MATCH = "champion_match"
"""The step that judges the candidate against the champion, if there is one."""


class StepRunner(Protocol):
    """Runs a recipe's steps: a flow run does them, a plan only looks whether they are done."""

    config: LifecycleConfig
    refs: dict[str, StageRef]

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Do a step, or find it done."""
        ...

    def champion_ref(self) -> StageRef | None:
        """Return the champion at the time when this run was started."""
        ...

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Return a version of a registered model, which is given under this name."""
        ...

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        """Judge the candidate against the champion."""
        ...


@dataclass
class Outline:
    """Walks a recipe and only notes its steps and their inputs; see `StepRunner`."""

    config: LifecycleConfig
    refs: dict[str, StageRef] = field(default_factory=dict)
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Note the step."""
        record = stage_of(config)
        self.refs[step] = pending_ref(record.name, step, record.makes)
        self.inputs[step] = {role: ref.step for role, ref in inputs.items() if ref is not None}
        return self.refs[step]

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Believe that it is there."""
        return pending_ref(uri, name, kind)

    def champion_ref(self) -> StageRef | None:
        """No champion: it changes no name."""
        return None

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        """Note the step that judges the candidate against the champion."""
        del candidate, reward_model
        self.refs[MATCH] = pending_ref(evaluation.stage, MATCH, evaluation.kind)
        return False


def step_names(steps: Callable[[StepRunner], None], config: LifecycleConfig) -> list[str]:
    """Return the names of a recipe's steps, in their order."""
    return list(outline_of(steps, config).refs)


def outline_of(steps: Callable[[StepRunner], None], config: LifecycleConfig) -> Outline:
    """Walk a recipe without doing a step.

    Raises:
        ConfigError: if there is no step, or one does not get the inputs that it needs; for `inputs`
            of an unknown step.
    """
    outline = Outline(config)
    steps(outline)
    if not outline.refs:
        raise ConfigError(
            f"the preset {config.name} has no step; add a block, e.g. `sft`, or `steps`"
        )
    known = [*outline.refs, *config.steps, *block_names()]
    _require_named("inputs", config.inputs, known, outline)
    _require_named("budget.steps", config.budget.steps, [*outline.refs], outline)
    return outline


def _require_named(key: str, names: Iterable[str], known: Sequence[str], outline: Outline) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(outline.refs)}"
            raise ConfigError(f"{key}.{name}: there is no such step; {hint}")


def block_names() -> list[str]:
    """Return the names of a preset's blocks that are stages, as the flow `stage` takes them."""
    return [
        name
        for name, info in LifecycleConfig.model_fields.items()
        if any(issubclass(model, StageConfig) for model in models_in(info.annotation))
    ]


def require_steps(requested: Sequence[str], known: Sequence[str]) -> None:
    """Check that every name is one of the known steps.

    Raises:
        ConfigError: naming the first that is not, and the nearest or all steps.
    """
    for name in requested:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ConfigError(f"unknown step '{name}'; {hint}there are: {', '.join(known)}")
