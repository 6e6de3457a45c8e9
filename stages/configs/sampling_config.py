"""How responses are sampled.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.configs.block import Block, StageConfig, operational, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.placement_config import ApartConfig, InlineConfig, PlacementConfig
from stages.configs.reward_config import RewardConfig, RewardModelRewardConfig
from stages.configs.training_config import MAX_SEQUENCE_TOKENS, UNKNOWN, UNKNOWN_LIMIT

MAX_GROUP_SIZE = 1024
"""Limit of responses per prompt; each one is a whole generation."""

COLDEST = 0.01
"""vLLM replaces temperatures between 0 and this one by it."""

TRUNCATIONS = ("top_p", "top_k", "min_p")


class RolloutConfig(Block):
    """How responses are sampled by a stage that trains on their log-probabilities.

    Such a stage samples tokens from the full distribution (no top-p, no top-k, not greedy), because
    its trainer scores that distribution.
    """

    engine: Literal["auto", "vllm", "transformers"] = semantic(
        "auto",
        "`auto` uses vLLM if it can run the model, otherwise transformers; the log has the choice "
        "and its reason.",
    )
    max_response_tokens: int = semantic(256, "Limit of a response, in tokens.", gt=0)
    max_tokens: int = semantic(
        1024, "Limit of prompt and response together.", gt=1, le=MAX_SEQUENCE_TOKENS
    )
    unknown_limit: float = operational(UNKNOWN_LIMIT, UNKNOWN, ge=0, le=1)
    temperature: float = semantic(
        1.0, f"Temperature of the sampled distribution; for vLLM at least {COLDEST}.", gt=0
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = semantic(
        (), "Texts that end a response; the text of the response ends before them."
    )
    stop_tokens: tuple[str, ...] = semantic(
        (), "Tokens of the vocabulary that end a response, beside the end token."
    )
    logprob_gap_limit: float = semantic(
        0.02,
        "Largest allowed mean difference between the log-probabilities of rollout engine and "
        "trainer, in nats per token.",
        gt=0,
    )
    gpu_memory_fraction: float = operational(
        0.4, "Share of a GPU's memory that vLLM may use.", gt=0, lt=1
    )
    placement: PlacementConfig = operational(
        InlineConfig(),
        "Where the engines run: inline, colocated or apart; changes results only by rounding.",
    )

    @model_validator(mode="before")
    @classmethod
    def _samples_what_is_trained(cls, fields: object) -> object:
        """Refuse truncated and greedy sampling where log-probabilities are trained."""
        may_truncate = issubclass(cls, TruncatedRolloutConfig)
        if not isinstance(fields, dict) or may_truncate:
            return fields
        found = [name for name in TRUNCATIONS if name in fields]
        if fields.get("temperature") == 0:
            found.append("temperature=0")
        if found:
            raise ValueError(
                f"{', '.join(found)}: this stage trains on the log-probabilities of its rollouts, "
                "and the trainer scores the full distribution, from which truncated or greedy "
                "sampling does not draw; remove it here. rejection_sampling, preference_pairs and "
                "evaluation allow it"
            )
        return fields

    @model_validator(mode="after")
    def _divides_only_vllm(self) -> Self:
        """Refuse to divide the weights of a transformers engine."""
        placement = self.placement
        parts = placement.tensor_parallel_size if isinstance(placement, ApartConfig) else 1
        if parts > 1 and self.engine != "vllm":
            raise ValueError(
                f"placement.tensor_parallel_size is {parts}, and only vLLM divides its weights; "
                f"set engine: vllm, found {self.engine}"
            )
        return self

    @model_validator(mode="after")
    def _is_sampled_as_asked(self) -> Self:
        """Refuse temperatures that vLLM would replace."""
        if 0 < self.temperature < COLDEST and self.engine != "transformers":
            raise ValueError(
                f"expected a temperature of at least {COLDEST}, found {self.temperature}, which "
                f"vLLM would replace by {COLDEST}; raise it, or choose engine: transformers"
            )
        return self

    @model_validator(mode="after")
    def _leaves_room_for_a_prompt(self) -> Self:
        """Refuse responses that may be as long as prompt and response together."""
        if self.max_response_tokens >= self.max_tokens:
            raise ValueError(
                f"max_response_tokens {self.max_response_tokens} leaves no room for a prompt in "
                f"max_tokens {self.max_tokens}; lower max_response_tokens, or raise max_tokens"
            )
        return self


class TruncatedRolloutConfig(RolloutConfig):
    """How responses are sampled by a stage that trains on none of their log-probabilities.

    The logits are divided by the temperature; then `min_p`, `top_k` and `top_p` remove tokens, in
    this order. Both rollout engines do the same.
    """

    temperature: float = semantic(
        1.0,
        f"Temperature of the sampled distribution; for vLLM at least {COLDEST}. 0 always takes the "
        "most likely token.",
        ge=0,
    )
    top_p: float = semantic(
        1.0,
        "Sample from the fewest tokens whose probabilities sum up to this (nucleus sampling).",
        gt=0,
        le=1,
    )
    top_k: int | None = semantic(
        None, "Sample from the k most likely tokens; None: from all.", gt=0
    )
    min_p: float = semantic(
        0.0, "Sample from tokens with this share of the largest probability or more.", ge=0, le=1
    )


class GroupSamplingConfig(StageConfig):
    """The fields of all stages that make a dataset from sampled responses."""

    prompts: DataConfig = semantic(..., "Prompts for the rollouts.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "Reward that ranks the responses.")
    rollouts: TruncatedRolloutConfig = semantic(
        TruncatedRolloutConfig(), "How responses are sampled."
    )
    frozen_models: FrozenModelsConfig = semantic(
        FrozenModelsConfig(), "How policy and reward model are held."
    )
    group_size: int = semantic(8, "Responses per prompt.", ge=2, le=MAX_GROUP_SIZE)
    keep_unfinished: bool = semantic(
        False,
        "Also use responses that the token limit cut (they have no end token), e.g. for open-ended "
        "texts.",
    )
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
    )
