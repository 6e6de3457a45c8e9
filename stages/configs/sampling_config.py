"""How responses are sampled.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Literal

from stages.configs.block import Block, StageConfig, operational, semantic
from stages.configs.data_config import DataConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig


class RolloutConfig(Block):
    """How responses are sampled.

    Tokens are always sampled from the full distribution (no top-p, no top-k), so their
    log-probabilities are known.
    """

    engine: Literal["auto", "vllm", "transformers"] = semantic(
        "auto",
        "`auto` uses vLLM if it can run the model, otherwise transformers; the log has the choice "
        "and its reason.",
    )
    max_response_tokens: int = semantic(256, "Limit of a response, in tokens.", gt=0)
    max_tokens: int = semantic(1024, "Limit of prompt and response together.", gt=1)
    temperature: float = semantic(1.0, "Temperature of the sampled distribution.", gt=0)
    logprob_gap_limit: float = semantic(
        0.02,
        "Largest allowed mean difference between the log-probabilities of rollout engine and "
        "trainer, in nats per token.",
        gt=0,
    )
    gpu_memory_fraction: float = operational(
        0.4, "Share of a GPU's memory that vLLM may use.", gt=0, lt=1
    )


class GroupSamplingConfig(StageConfig):
    """The fields of all stages that make a dataset from sampled responses."""

    prompts: DataConfig = semantic(..., "Prompts for the rollouts.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "Reward that ranks the responses.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    group_size: int = semantic(8, "Responses per prompt.", ge=2)
    keep_unfinished: bool = semantic(
        False,
        "Also use responses that the token limit cut (they have no end token), e.g. for open-ended "
        "texts.",
    )
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
    )
