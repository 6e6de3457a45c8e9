"""The Ray cluster as a stage sees it; Ray is imported only when something is placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stages.configs.placement_config import ApartConfig, ApartScoringConfig
    from training_core.rewards.reward import Reward
    from training_core.rollout.engine_process import EngineHost


class StageCluster:
    """Places parts of a stage on the Ray cluster that runs it; see `stages.contract.Cluster`.

    Args:
        should_stop: whether the stage shall stop.
    """

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def engine_host(self, placement: ApartConfig) -> EngineHost:
        """Reserve the resources of rollout engines."""
        from stages.runtime.ray_engines import RayEngineHost

        return RayEngineHost(placement, self._should_stop)

    def reward(self, placement: ApartScoringConfig, build: Callable[[], Reward]) -> Reward:
        """Start the actors that score."""
        from stages.runtime.ray_rewards import RayReward

        return RayReward(placement, build)
