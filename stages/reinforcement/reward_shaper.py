"""From the rewards of responses to those that the policy maximises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.rollout_group import RolloutGroup
from training_core.algorithms.reward_shaping import (
    overlong_penalties,
    pooled_moments,
    stop_properly,
)
from training_core.engine.protocol import StateDict
from training_core.types import ScoredRollout


class RewardShaper:
    """Normalises and clips rewards, then applies the penalties of long and cut responses.

    The penalties come last, so they are in units of the normalised reward. The moments of all
    rewards so far go into checkpoints.

    Args:
        config: of the stage.
    """

    def __init__(self, config: PpoConfig) -> None:
        self._config = config
        self._moments = (0.0, 0.0, 0.0)

    def __call__(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """Return the groups of a round with shaped rewards."""
        if self._config.normalise_rewards and groups:
            rewards = torch.tensor([s.reward for group in groups for s in group.scored])
            self._moments = pooled_moments(self._moments, rewards.double())
        return [
            RolloutGroup(
                tuple(self._shaped(group.scored)),
                None if group.greedy is None else self._shaped([group.greedy])[0],
            )
            for group in groups
        ]

    def _shaped(self, scored: Sequence[ScoredRollout]) -> list[ScoredRollout]:
        config = self._config
        rewards = self._normalised(torch.tensor([s.reward for s in scored], dtype=torch.float64))
        if config.reward_clip is not None:
            rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
        is_finished = torch.tensor([s.rollout.is_finished for s in scored])
        rewards = stop_properly(rewards, is_finished, factor=config.unfinished_factor)
        rewards = rewards - config.unfinished_penalty * (~is_finished).double()
        if config.overlong is not None:
            lengths = torch.tensor([len(s.rollout.response_ids) for s in scored]).double()
            limits = {"max_tokens": config.rollouts.max_response_tokens}
            rewards = rewards - overlong_penalties(
                lengths, **limits, **config.overlong.model_dump()
            )
        return [replace(s, reward=r) for s, r in zip(scored, rewards.tolist(), strict=True)]

    def _normalised(self, rewards: Tensor) -> Tensor:
        count, mean, squares = self._moments
        if not self._config.normalise_rewards or squares == 0:
            return rewards - mean
        return (rewards - mean) / (squares / count) ** 0.5

    def state_dict(self) -> StateDict:
        """Return the moments of all rewards so far."""
        return {"moments": list(self._moments)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        count, mean, squares = state["moments"]
        self._moments = (count, mean, squares)
