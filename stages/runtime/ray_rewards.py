"""Rewards that Ray actors compute; the rewards themselves know nothing of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

import torch

from stages.configs.placement_config import ApartScoringConfig
from stages.runtime.ray_workers import RemoteMethod, join_cluster
from training_core.errors import RatchetError, TransientError
from training_core.rewards.reward import Reward, RewardResult
from training_core.types import Rollout

MAX_RESTARTS = 3


class RewardHandle(Protocol):
    """A remote `RewardActor`."""

    score: RemoteMethod[[Sequence[Rollout]], list[RewardResult]]


class RayReward:
    """A reward of which each actor computes a part; see `training_core.rewards.reward.Reward`.

    Ray restarts an actor that dies, and asks it again.

    Args:
        placement: number of actors, and the resources of each.
        build: builds the reward in each actor.
    """

    def __init__(self, placement: ApartScoringConfig, build: Callable[[], Reward]) -> None:
        import ray

        join_cluster()
        self._seconds = placement.timeout_seconds
        remote = ray.remote(max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS)(RewardActor)
        threads = max(1, int(placement.num_cpus))
        self._actors = [
            cast(
                RewardHandle,
                remote.options(num_cpus=placement.num_cpus, num_gpus=placement.num_gpus).remote(
                    str(Path.cwd()), threads, build
                ),
            )
            for _ in range(placement.scorers)
        ]

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult]:
        """Score `rollouts`, one result each, in their order.

        Raises:
            TransientError: if an actor finds no place, is lost too often, or takes too long.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        count = len(self._actors)
        asked = [actor.score.remote(rollouts[i::count]) for i, actor in enumerate(self._actors)]
        try:
            parts = ray.get(asked, timeout=self._seconds)
        except (GetTimeoutError, RayActorError) as error:
            raise TransientError(
                f"expected rewards of {len(rollouts)} rollouts within {self._seconds:g} s, found "
                f"{error}; free are {ray.available_resources()}; raise scoring.timeout_seconds, or "
                "lower its resources"
            ) from error
        except RayTaskError as error:
            if isinstance(error.cause, RatchetError):
                raise error.cause from None
            raise
        return [parts[i % count][i // count] for i in range(len(rollouts))]


class RewardActor:
    """Computes a part of the rewards.

    Args:
        folder: working directory of the job.
        threads: number of threads of torch.
        build: builds the reward.
    """

    def __init__(self, folder: str, threads: int, build: Callable[[], Reward]) -> None:
        os.chdir(folder)
        torch.set_num_threads(threads)
        self._build = build
        self._reward: Reward | None = None

    def score(self, rollouts: Sequence[Rollout]) -> list[RewardResult]:
        """Score `rollouts`; the first call builds the reward, so that its errors are told."""
        if self._reward is None:
            self._reward = self._build()
        return list(self._reward(rollouts)) if rollouts else []
