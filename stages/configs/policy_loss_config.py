"""Losses of policy and critic in the stage `ppo`: one class per entry of their tables.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import Field

from stages.configs.advantage_config import AggregationName
from stages.configs.block import Block, TableEntryConfig, semantic


class BasePolicyLossConfig(TableEntryConfig):
    """What all policy losses have; each subclass in this module is a choice of `ppo.policy_loss`.

    Its fields, except `name`, are keyword arguments of the function in `POLICY_LOSSES`.
    """

    is_of_sequence: ClassVar[bool] = False
    default_aggregation: ClassVar[AggregationName] = "token_mean"


def _clip_low(default: float, source: str) -> Any:
    return semantic(default, f"Lower clip range of the ratio ({source}).", gt=0, lt=1)


def _clip_high(default: float, source: str) -> Any:
    return semantic(default, f"Upper clip range of the ratio ({source}).", gt=0)


class PpoClipConfig(BasePolicyLossConfig):
    """PPO's clipped loss, Schulman et al. 2017; with `clip_high: 0.28` DAPO's clip-higher."""

    name: Literal["ppo_clip"] = semantic("ppo_clip", "Name of the loss.")
    clip_low: float = _clip_low(0.2, "PPO paper")
    clip_high: float = _clip_high(0.2, "PPO paper; 0.28 in DAPO, arXiv:2503.14476")


class DualClipConfig(BasePolicyLossConfig):
    """PPO's loss with a second clip for bad tokens, Ye et al. 2020."""

    name: Literal["dual_clip"] = semantic("dual_clip", "Name of the loss.")
    clip_low: float = _clip_low(0.2, "PPO paper")
    clip_high: float = _clip_high(0.2, "PPO paper")
    dual: float = semantic(3.0, "Largest ratio that counts for a bad token (paper's value).", gt=1)


class GspoConfig(BasePolicyLossConfig):
    """One ratio per response, Zheng et al. 2025."""

    is_of_sequence = True
    default_aggregation = "sequence_mean"

    name: Literal["gspo"] = semantic("gspo", "Name of the loss.")
    clip_low: float = _clip_low(3e-4, "paper, section 5.1")
    clip_high: float = _clip_high(4e-4, "paper, section 5.1")


class GspoTokenConfig(BasePolicyLossConfig):
    """GSPO for advantages that differ between the tokens of a response, Zheng et al. 2025."""

    is_of_sequence = True
    default_aggregation = "sequence_mean"

    name: Literal["gspo_token"] = semantic("gspo_token", "Name of the loss.")
    clip_low: float = _clip_low(3e-4, "paper, section 5.1")
    clip_high: float = _clip_high(4e-4, "paper, section 5.1")


class CispoConfig(BasePolicyLossConfig):
    """REINFORCE with a truncated weight; no token loses its gradient. MiniMax 2025."""

    name: Literal["cispo"] = semantic("cispo", "Name of the loss.")
    max_ratio: float = semantic(
        5.0, "Largest weight of a token (4 to 8 in ScaleRL, arXiv:2510.13786).", gt=1
    )


class SapoConfig(BasePolicyLossConfig):
    """A sigmoid gate in place of the clip, Gao et al. 2025."""

    default_aggregation = "sequence_mean"

    name: Literal["sapo"] = semantic("sapo", "Name of the loss.")
    tau_positive: float = semantic(1.0, "Steepness where A > 0 (paper's value).", gt=0)
    tau_negative: float = semantic(1.05, "Steepness where A < 0 (paper's value).", gt=0)


class DppoTvConfig(BasePolicyLossConfig):
    """Tokens whose probability moved too far keep no gradient, Qi et al. 2026, Binary-TV."""

    name: Literal["dppo_tv"] = semantic("dppo_tv", "Name of the loss.")
    limit_low: float = semantic(
        0.2, "Largest fall of a bad token's probability (verl's and prime-rl's value).", gt=0, lt=1
    )
    limit_high: float = semantic(
        0.2, "Largest rise of a good token's probability (verl's and prime-rl's value).", gt=0, lt=1
    )
    max_ratio: float = semantic(20.0, "Largest weight of a token (verl's value).", gt=1)


class DppoKlConfig(BasePolicyLossConfig):
    """As `dppo_tv`, with the binary KL divergence; Qi et al. 2026, Binary-KL."""

    name: Literal["dppo_kl"] = semantic("dppo_kl", "Name of the loss.")
    limit_low: float = semantic(
        0.05, "Largest divergence where a bad token became less likely, in nats.", gt=0
    )
    limit_high: float = semantic(
        0.05, "Largest divergence where a good token became more likely, in nats.", gt=0
    )
    max_ratio: float = semantic(20.0, "Largest weight of a token (verl's value).", gt=1)


class GmpoConfig(BasePolicyLossConfig):
    """The geometric mean of clipped ratios, Zhao et al. 2025."""

    is_of_sequence = True
    default_aggregation = "sequence_mean"

    name: Literal["gmpo"] = semantic("gmpo", "Name of the loss.")
    clip_low: float = semantic(
        0.4, "Lower clip range of the log-ratio, in nats (paper's value).", gt=0
    )
    clip_high: float = semantic(
        0.4, "Upper clip range of the log-ratio, in nats (paper's value).", gt=0
    )


if TYPE_CHECKING:
    PolicyLossConfig: TypeAlias = BasePolicyLossConfig
else:  # any of the classes above; `name` selects it
    PolicyLossConfig = Annotated[
        Union[tuple(BasePolicyLossConfig.__subclasses__())],  # noqa: UP007 - built from a list
        Field(discriminator="name"),
    ]


class ClippedValueLossConfig(Block):
    """Squared error with a clipped change, as in OpenAI's PPO."""

    name: Literal["clipped"] = semantic("clipped", "Name of the loss.")
    clip: float = semantic(
        0.2, "Clip range of the value's change, in units of the return (OpenAI baselines).", gt=0
    )


class SquaredValueLossConfig(Block):
    """Squared error."""

    name: Literal["squared"] = semantic("squared", "Name of the loss.")


ValueLossConfig = Annotated[
    ClippedValueLossConfig | SquaredValueLossConfig, Field(discriminator="name")
]
