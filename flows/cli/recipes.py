"""The flows that are recipes of several steps, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows import full_rlhf, iterative_dpo, raft
from flows.recipe.outline import StepRunner
from training_core.errors import ConfigError

Steps = Callable[[StepRunner], None]

RECIPES: Mapping[str, Steps] = {
    "full-rlhf": full_rlhf.steps,
    "iterative-dpo": iterative_dpo.steps,
    "raft": raft.steps,
}


def recipe_of(flow: str) -> Steps:
    """Return the steps of a flow.

    Raises:
        ConfigError: if there is no such flow, or it has no recipe.
    """
    if flow not in RECIPES:
        raise ConfigError(f"expected a flow of {', '.join(RECIPES)}, found '{flow}'")
    return RECIPES[flow]
