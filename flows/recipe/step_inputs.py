"""Whether a step gets what it needs, and nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.reward_config import RewardModelRewardConfig, rewards_in
from stages.configs.stage_record import StageRecord
from stages.datasets.configured import rows_name
from tasks.refs import StageRef
from training_core.errors import ConfigError

SOURCES = {"policy": "base", "dataset": "data"}
"""Role -> field of the config that may stand in for the input."""


def rows_wanted(config: StageConfig) -> str | None:
    """Return the kind of rows that the input `dataset` of a stage must have; None: it has none."""
    use = stage_of(config).reads.get("data")
    return rows_name(use, config) if use else None


def require_inputs(
    step: str, config: StageConfig, inputs: Mapping[str, StageRef], untaken: Sequence[str]
) -> None:
    """Check the inputs of a step.

    Args:
        step: its name.
        config: its config.
        inputs: by role.
        untaken: earlier steps with rows that this step could take.

    Raises:
        ConfigError: if one is missing, or the config provides it, too; for an unknown role; for
            the output of another kind.
    """
    record = stage_of(config)
    try:
        record.require_known_roles(inputs)
    except ConfigError as error:
        raise ConfigError(f"inputs.{step}: {error}") from error
    for role, ref in inputs.items():
        kind = record.kind_of(role)
        if ref.kind != kind:
            raise ConfigError(
                f"inputs.{step}.{role}: expected a {kind}, found the {ref.kind} of step "
                f"'{ref.step}'; name a step that makes a {kind}"
            )
    for role, field in SOURCES.items():
        _require_one_source(step, config, role, field, inputs.get(role))
    if getattr(config, "data", None) is not None and untaken:
        raise ConfigError(
            f"{step}.data is set, but step '{untaken[-1]}' gives it, too; remove one of the two"
        )
    for role in record.required:
        if role not in inputs:
            raise ConfigError(_missing(step, record, role))
    _require_reward_model(step, config, inputs)


def _require_one_source(
    step: str, config: StageConfig, role: str, field: str, given: StageRef | None
) -> None:
    if field not in type(config).model_fields or stage_of(config).kind_of(role) is None:
        return
    if getattr(config, field) is not None and given is not None:
        raise ConfigError(
            f"{step}.{field} is set, but step '{given.step}' gives it, too; remove one of the two"
        )
    if getattr(config, field) is None and given is None:
        what = "a policy" if role == "policy" else f"{rows_wanted(config)}"
        raise ConfigError(
            f"{step}.{field} is not set, and no step before it makes {what.replace('_', ' ')}; "
            "set it"
        )


def _missing(step: str, record: StageRecord, role: str) -> str:
    kind = str(record.kind_of(role))
    needed = kind.replace("_", " ") + ("" if role == kind else f" as {role}")
    return (
        f"step '{step}' needs a {needed}, and no step before it gives one; add such a "
        f"step, or put a model that you have in `given` and its name in `inputs.{step}.{role}`"
    )


def uses_reward_model(config: StageConfig) -> bool:
    """Whether a stage's reward is, or has as a part, the input `reward_model`."""
    rewards = rewards_in(getattr(config, "reward", None))
    if isinstance(config, PpoConfig) and config.evaluation and config.evaluation.judge:
        rewards += rewards_in(config.evaluation.judge.reward)
    return any(isinstance(reward, RewardModelRewardConfig) for reward in rewards)


def _require_reward_model(step: str, config: StageConfig, inputs: Mapping[str, StageRef]) -> None:
    if uses_reward_model(config) and "reward_model" not in inputs:
        raise ConfigError(
            f"{step}.reward is the reward model of this lifecycle, and there is none; add the "
            "block `reward_model`, set `given.reward_model`, or choose another reward"
        )
