"""How responses are sampled.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Literal

from stages.configs.block import Block, StageConfig, operational, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig


class RolloutConfig(Block):
    """How responses are sampled.

    Always from the whole distribution, so that their probabilities are known.
    """

    engine: Literal["auto", "vllm", "transformers"] = semantic(
        "auto",
        "auto takes vLLM where it can run the model, else transformers, "
        "and the log says which and why.",
    )
    max_response_tokens: int = semantic(256, "Longest response.", gt=0)
    max_tokens: int = semantic(1024, "Longest prompt and response together.", gt=1)
    temperature: float = semantic(1.0, "Of the sampled distribution.", gt=0)
    logprob_gap_limit: float = semantic(
        0.02,
        "Largest mean difference between sampler's and trainer's log-probabilities, "
        "in nats per token.",
        gt=0,
    )
    gpu_memory_fraction: float = operational(
        0.4, "Share of a GPU that the engine may take.", gt=0, lt=1
    )


class GroupSamplingConfig(StageConfig):
    """What the stages that make a dataset of sampled responses have in common."""

    prompts: DataConfig = semantic(..., "Prompts to answer.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "What ranks the responses.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    group_size: int = semantic(8, "Responses per prompt.", ge=2)
    keep_unfinished: bool = semantic(
        False,
        "Use responses that were cut by the token limit too (without an end token), "
        "for open-ended texts.",
    )
    unscored_limit: float = semantic(
        0.02, "Tolerated share of rollouts without a reward.", ge=0, le=1
    )
