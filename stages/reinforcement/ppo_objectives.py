"""The objectives that a config of PPO names."""

from __future__ import annotations

from functools import partial

from stages.configs.ppo_config import PpoConfig
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.value_losses import VALUE_LOSSES
from training_core.loop import Objective
from training_core.objectives.reinforcement import (
    Aggregate,
    KlLoss,
    PretrainingBatch,
    policy_objective,
    value_objective,
)
from training_core.types import Experience


def policy_objective_of(
    config: PpoConfig, kl_coef: float
) -> Objective[Experience | PretrainingBatch]:
    """Build the policy's objective.

    Args:
        config: of the stage.
        kl_coef: weight of the KL in the loss; 0 if it is part of the reward, or not used.
    """
    loss, estimator = config.policy_loss, KL_ESTIMATORS[config.kl_estimator]
    return policy_objective(
        partial(POLICY_LOSSES[loss.entry].function, **loss.hyperparameters),
        aggregate_of(config),
        temperature=config.rollouts.temperature,
        entropy_coef=config.entropy_coef,
        kl_loss=KlLoss(estimator, kl_coef, config.kl_by_ratio) if kl_coef else None,
    )


def aggregate_of(config: PpoConfig) -> Aggregate:
    """Look up the aggregation of the policy's loss."""
    function, max_tokens = AGGREGATIONS[config.aggregation], config.rollouts.max_response_tokens
    return lambda losses, mask: function(losses, mask, max_tokens)


def critic_objective_of(config: PpoConfig) -> Objective[Experience]:
    """Build the critic's objective."""
    loss = config.value_loss
    hyperparameters = loss.model_dump(exclude={"name"})
    return value_objective(partial(VALUE_LOSSES[loss.name], **hyperparameters))
