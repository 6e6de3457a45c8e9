"""Sampling and scoring that all ranks share: each does a part, and every rank gets the whole.

The wrappers have the interfaces of a rollout engine and of a reward. Every rank must call them
together, with the same arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from stages.configs.placement_config import ApartConfig
from stages.configs.sampling_config import RolloutConfig
from stages.sampling.rollouts import placed_beside_ranks
from training_core.dist_info import DistInfo
from training_core.distributed import all_gather_object, broadcast_object
from training_core.rewards.reward import Reward, RewardResult
from training_core.rollout.engine import (
    Policy,
    RolloutEngine,
    claim_ids,
    generate_in_order,
    named_weights,
    require_idle,
)
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.types import Prompt, Rollout

T = TypeVar("T")


def open_engine_of_ranks(
    open_one: Callable[[RolloutConfig], RolloutEngine], rollouts: RolloutConfig, dist_info: DistInfo
) -> RolloutEngine:
    """Open the rollout engines of a stage, and return one that all ranks use together.

    Args:
        open_one: opens the engines of one rank.
        rollouts: has the placement.
        dist_info: this process.
    """
    if dist_info.is_single_process:
        return open_one(rollouts)
    if isinstance(rollouts.placement, ApartConfig):
        return EngineOfFirstRank(open_one(rollouts) if dist_info.is_first else None, dist_info)
    return EngineOfAllRanks(open_one(placed_beside_ranks(rollouts, dist_info)), dist_info)


class EngineOfAllRanks:
    """A rollout engine per rank, each with the weights of the policy; see `RolloutEngine`.

    Seeds belong to requests, so the number of ranks changes rollouts only as far as the batch of an
    engine changes its rounding.

    Args:
        engine: of this rank.
        dist_info: this process.
    """

    def __init__(self, engine: RolloutEngine, dist_info: DistInfo) -> None:
        self._engine, self._dist_info = engine, dist_info
        self.name, self.policy_version = engine.name, engine.policy_version
        self._unfinished: dict[str, RolloutRequest] = {}

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Accept requests."""
        claim_ids(self._unfinished, requests)

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Sample everything, and yield id and rollout of each request."""
        while self._unfinished:
            requests = list(self._unfinished.values())
            rows = _in_parts(len(requests), partial(self._sample, requests), self._dist_info)
            self._unfinished.clear()
            for request, row in zip(requests, rows, strict=True):
                yield request.id, Rollout(prompt=request.prompt, **row)

    def _sample(
        self, requests: Sequence[RolloutRequest], places: Sequence[int]
    ) -> list[dict[str, Any]]:
        own = [requests[place] for place in places]
        self._engine.submit(own)
        rollouts = dict(self._engine.finished())
        return [_without_prompt(rollouts[request.id]) for request in own]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt."""
        return generate_in_order(self, prompts, sampling, seeds)

    def load_weights(self, policy: Policy, version: int) -> str:
        """Copy the weights of `policy` to the engine of this rank."""
        require_idle(self._unfinished, version)
        digest = self._engine.load_weights(policy, version)
        self.policy_version = version
        return digest

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest that `load_weights` returns if the engine has these weights."""
        return self._engine.digest_of(weights)

    def sleep(self) -> None:
        """Free what the engine of this rank does not need until the next `load_weights`."""
        self._engine.sleep()

    def close(self) -> None:
        """Free the resources of the engine of this rank."""
        self._engine.close()


class EngineOfFirstRank:
    """A rollout engine that the first rank has for all; see `RolloutEngine`.

    Args:
        engine: of the first rank; None on every other.
        dist_info: this process.
    """

    def __init__(self, engine: RolloutEngine | None, dist_info: DistInfo) -> None:
        self._engine, self._dist_info = engine, dist_info
        self.name = "" if engine is None else engine.name
        self.policy_version = 0
        self._unfinished: dict[str, RolloutRequest] = {}
        self._done: deque[tuple[str, dict[str, Any]]] = deque()

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Accept requests."""
        claim_ids(self._unfinished, requests)
        if self._engine is not None:
            self._engine.submit(requests)

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Wait for all rollouts, and yield them in the same order on every rank."""
        while self._unfinished:
            if not self._done:
                self._done += broadcast_object(self._sample(), self._dist_info)
            name, row = self._done.popleft()
            yield name, Rollout(prompt=self._unfinished.pop(name).prompt, **row)

    def _sample(self) -> list[tuple[str, dict[str, Any]]]:
        if self._engine is None:
            return []
        return [(name, _without_prompt(rollout)) for name, rollout in self._engine.finished()]

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt."""
        return generate_in_order(self, prompts, sampling, seeds)

    def load_weights(self, policy: Policy, version: int) -> str:
        """Send the weights of `policy` from the first rank; every other returns no digest."""
        require_idle(self._unfinished, version)
        self.policy_version = version
        if self._engine is None:
            return self.digest_of(named_weights(policy))
        return self._engine.load_weights(policy, version)

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest that `load_weights` returns if the engine has these weights.

        Without an engine it is empty, but a divided policy is gathered with the other ranks.
        """
        if self._engine is None:
            deque(weights, maxlen=0)
            return ""
        return self._engine.digest_of(weights)

    def sleep(self) -> None:
        """Free what the engine does not need until the next `load_weights`."""
        if self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """Free the resources of the engine."""
        if self._engine is not None:
            self._engine.close()


class RewardOfAllRanks:
    """A reward of which each rank computes a part; see `training_core.rewards.reward.Reward`.

    Args:
        reward: of this rank.
        dist_info: this process.
        needs_all_ranks: whether the ranks compute the reward together, so that one without a part
            must take part, too; it scores a rollout that another one has.
    """

    def __init__(
        self, reward: Reward, dist_info: DistInfo, *, needs_all_ranks: bool = False
    ) -> None:
        self._reward, self._dist_info = reward, dist_info
        self._needs_all_ranks = needs_all_ranks

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult]:
        """Score `rollouts`, one result each, in their order."""

        def part(places: Sequence[int]) -> list[RewardResult]:
            if not places and self._needs_all_ranks:
                self._reward(rollouts[:1])
            return list(self._reward([rollouts[i] for i in places])) if places else []

        return _in_parts(len(rollouts), part, self._dist_info) if rollouts else []


class RewardOfFirstRank:
    """A reward that the first rank asks for all; see `training_core.rewards.reward.Reward`.

    Args:
        reward: of the first rank; None on every other.
        dist_info: this process.
    """

    def __init__(self, reward: Reward | None, dist_info: DistInfo) -> None:
        self._reward, self._dist_info = reward, dist_info

    def __call__(self, rollouts: Sequence[Rollout]) -> Sequence[RewardResult]:
        """Score `rollouts`, one result each, in their order."""
        results = [] if self._reward is None else list(self._reward(rollouts))
        return broadcast_object(results, self._dist_info)


def _without_prompt(rollout: Rollout) -> dict[str, Any]:
    """Return the other fields of a rollout; every rank has the prompt."""
    return {f.name: getattr(rollout, f.name) for f in fields(rollout) if f.name != "prompt"}


def _in_parts(
    number: int, part: Callable[[Sequence[int]], list[T]], dist_info: DistInfo
) -> list[T]:
    """Let every rank compute its places, and return the results of all in the order of places."""
    world_size = dist_info.world_size
    parts = all_gather_object(part(range(dist_info.rank, number, world_size)), dist_info)
    return [parts[place % world_size][place // world_size] for place in range(number)]
