"""Which steps a recipe has, without doing any: what `force` and the flow `stage` may name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.block import StageConfig
from stages.configs.explanation import models_in
from tasks.refs import StageRef, pending_ref
from training_core.errors import ConfigError

MATCH = "champion_match"
"""The step that weighs the candidate against the champion, where there is one."""


class StepRunner(Protocol):
    """What a recipe is written against: a flow run does the steps, a plan only looks at them."""

    config: LifecycleConfig
    refs: dict[str, StageRef]

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Do a step, or find it done."""
        ...

    def champion_ref(self) -> StageRef | None:
        """Return the champion at the time when this run was started."""
        ...

    def promote_if_better(
        self, candidate: StageRef, against_sft: StageRef, reward_model: StageRef
    ) -> bool:
        """Judge the candidate against the champion."""
        ...


@dataclass
class Outline:
    """Walks a recipe like a flow run, but only notes the names of its steps; see `StepRunner`."""

    config: LifecycleConfig
    refs: dict[str, StageRef] = field(default_factory=dict)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Note the step."""
        del config, inputs
        self.refs[step] = pending_ref(step, step)
        return self.refs[step]

    def champion_ref(self) -> StageRef | None:
        """No champion: it changes no name."""
        return None

    def promote_if_better(
        self, candidate: StageRef, against_sft: StageRef, reward_model: StageRef
    ) -> bool:
        """Note the step that weighs the candidate against the champion."""
        del candidate, against_sft, reward_model
        self.refs[MATCH] = pending_ref("evaluation", MATCH)
        return False


def step_names(steps: Callable[[StepRunner], None], config: LifecycleConfig) -> list[str]:
    """Return the names of a recipe's steps, in their order."""
    outline = Outline(config)
    steps(outline)
    return list(outline.refs)


def block_names() -> list[str]:
    """Return the names of a preset's blocks that are stages, as the flow `stage` takes them."""
    return [
        name
        for name, info in LifecycleConfig.model_fields.items()
        if any(issubclass(model, StageConfig) for model in models_in(info.annotation))
    ]


def require_steps(asked: Sequence[str], known: Sequence[str]) -> None:
    """Check that every name is one of the known steps.

    Raises:
        ConfigError: naming the first that is not, and the nearest or all steps.
    """
    for name in asked:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ConfigError(f"unknown step '{name}'; {hint}there are: {', '.join(known)}")
