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
    config: PpoConfig,
    inputs: Inputs,
    dist_info: DistInfo,
    cluster: Cluster | None,
    wanted: RewardConfig,
) -> Reward:
    """Build a reward, here or on the cluster, and return one that all ranks use together."""
    is_apart = isinstance(config.scoring, ApartScoringConfig)
    ranks = SINGLE_PROCESS if is_apart and cluster is not None else dist_info
    use = RewardModelUse(config.micro_batch_tokens, config.frozen_models, ranks)
    build = partial(build_reward, wanted, inputs, use)
    if isinstance(config.scoring, ApartScoringConfig):
        if cluster is not None:
            reward = cluster.reward(config.scoring, build) if dist_info.is_first else None
            return RewardOfFirstRank(reward, dist_info)
        log.warning("without a Ray job, rewards that are apart are computed by the workers")
    if dist_info.is_single_process:
        return build()
    return RewardOfAllRanks(build(), dist_info, needs_all_ranks=config.frozen_models.shard)


def open_judge(
    config: PpoConfig,
    open_one: Callable[[RewardConfig], Reward],
    functions: TokenFunctions,
    pad_id: int,
    device: torch.device,
) -> HeldOutJudge | None:
    """Open what watches for over-optimisation; None if the config has no judge.

    Args:
        config: of the stage.
        open_one: opens a reward.
        functions: have the log-probabilities of the reference, if there is one.
        pad_id: id of the padding token.
        device: of the trained models.
    """
    if config.evaluation is None or config.evaluation.judge is None:
        return None
    distance = distance_to_reference(config, functions, pad_id, device)
    return HeldOutJudge(open_one(config.evaluation.judge.reward), distance)


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
