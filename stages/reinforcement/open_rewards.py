"""Open the rewards of PPO: the one that is optimised, and the judge beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from stages.configs.placement_config import ApartScoringConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.reward_config import RewardConfig
from stages.contract import Cluster, Inputs
from stages.reinforcement.all_ranks import RewardOfAllRanks, RewardOfFirstRank
from stages.reinforcement.experience import TokenFunctions, evaluate
from stages.reinforcement.held_out import HeldOutJudge
from stages.sampling.rewards import RewardModelUse, build_reward
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.rewards.reward import Reward
from training_core.types import Rollout

log = logging.getLogger(__name__)

Distance = Callable[[Sequence[Rollout]], float]
"""KL of rollouts to the reference, in nats per response."""


def open_reward(
    config: PpoConfig, inputs: Inputs, dist_info: DistInfo, cluster: Cluster | None
) -> Reward:
    """Build the reward, here or on the cluster, and return one that all ranks use together."""
    if not isinstance(config.scoring, ApartScoringConfig):
        return _reward_of_workers(config.reward, config, inputs, dist_info)
    if cluster is None:
        log.warning("without a Ray job, rewards that are apart are computed by the workers")
        return _reward_of_workers(config.reward, config, inputs, dist_info)
    build = partial(build_reward, config.reward, inputs, _use(config, SINGLE_PROCESS))
    reward = cluster.reward(config.scoring, build) if dist_info.is_first else None
    return RewardOfFirstRank(reward, dist_info)


def open_judge(
    config: PpoConfig,
    inputs: Inputs,
    dist_info: DistInfo,
    distance: Distance | None,
) -> HeldOutJudge | None:
    """Open what watches for over-optimisation; None if the config has no judge.

    The workers compute it, wherever the reward is: nothing is reserved for a second one.

    Args:
        config: of the stage.
        inputs: what the judge may need.
        dist_info: this process.
        distance: measures how far the policy is from its reference; None if nothing can.
    """
    if config.evaluation is None or config.evaluation.judge is None:
        return None
    reward = _reward_of_workers(config.evaluation.judge.reward, config, inputs, dist_info)
    return HeldOutJudge(reward, distance)


def _reward_of_workers(
    wanted: RewardConfig, config: PpoConfig, inputs: Inputs, dist_info: DistInfo
) -> Reward:
    reward = build_reward(wanted, inputs, _use(config, dist_info))
    if dist_info.is_single_process:
        return reward
    return RewardOfAllRanks(reward, dist_info, needs_all_ranks=config.frozen_models.shard)


def _use(config: PpoConfig, ranks: DistInfo) -> RewardModelUse:
    return RewardModelUse(config.micro_batch_tokens, config.frozen_models, ranks)


def distance_to_reference(
    config: PpoConfig, functions: TokenFunctions, pad_id: int, device: torch.device
) -> Distance | None:
    """Return what measures the KL of held-out rollouts to the reference, by the sampler's word.

    None without a reference, or if these rollouts have a temperature of their own: the two
    distributions would not be those of the training.
    """
    temperature = config.evaluation and config.evaluation.temperature
    if functions.reference is None or temperature not in (None, config.rollouts.temperature):
        return None
    of_sampler = TokenFunctions(policy=None, reference=functions.reference)

    def distance(rollouts: Sequence[Rollout]) -> float:
        found = evaluate(rollouts, of_sampler, pad_id=pad_id, device=device)
        return found.kl_per_response() or 0.0

    return distance
