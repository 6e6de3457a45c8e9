"""The bar of a reward model, before a step optimises a policy for it."""

from __future__ import annotations

from collections.abc import Mapping

from prefect import get_run_logger

from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.step_inputs import uses_reward_model
from stages.configs.admission_config import AdmissionConfig
from stages.configs.block import StageConfig
from stages.configs.evaluation_config import EvaluationConfig
from tasks.admission import is_measured, problems_with, require_admitted
from tasks.refs import StageRef


def require_admitted_reward_model(
    config: LifecycleConfig, step: str, stage: StageConfig, inputs: Mapping[str, StageRef]
) -> None:
    """Stop before a step that optimises for a reward model below the preset's bar.

    Args:
        config: the lifecycle; the bar is in the block of the step that made the reward model.
        step: name of the step.
        stage: its config.
        inputs: its inputs, by role.

    Raises:
        AdmissionError: naming each number that is not above the bar.
    """
    reward_model = inputs.get("reward_model")
    is_judged = isinstance(stage, EvaluationConfig)  # an evaluation optimises nothing
    if reward_model is None or is_judged or not uses_reward_model(stage):
        return
    bar = getattr(config.step_config(reward_model.step), "admission", AdmissionConfig())
    require_admitted(step, reward_model, bar)
    made_by = reward_model.step
    for problem in problems_with(reward_model, bar):
        get_run_logger().warning("reward model of step '%s': %s", made_by, problem)
    if not is_measured(reward_model):
        get_run_logger().warning(
            "the reward model of step '%s' was never held against baselines", made_by
        )
