"""Losses on pairs and on rated responses, with defaults from their papers.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stages.configs.block import Block, semantic

SMOOTHING = "Assumed share of flipped labels."


def _beta(default: float, description: str) -> Any:
    return semantic(default, description, gt=0)


class DpoLossConfig(Block):
    """Sigmoid loss of Rafailov et al. 2023; label smoothing makes it cDPO."""

    name: Literal["dpo"] = semantic("dpo", "Which loss this is.")
    beta: float = _beta(0.1, "Strength of the pull to the reference (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


class RobustLossConfig(Block):
    """DPO whose mean under flipped labels is the loss under true ones, Chowdhury et al. 2024."""

    name: Literal["robust"] = semantic("robust", "Which loss this is.")
    beta: float = _beta(0.1, "As for dpo.")
    label_smoothing: float = semantic(0.1, SMOOTHING, ge=0, lt=0.5)


class IpoLossConfig(Block):
    """Squared loss of Azar et al. 2023 on log-ratios averaged over the response's tokens."""

    name: Literal["ipo"] = semantic("ipo", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's tau, per token.")


class IpoSummedLossConfig(Block):
    """The same on summed log-ratios, as OpenRLHF has it."""

    name: Literal["ipo_summed"] = semantic("ipo_summed", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's tau, per response.")


class HingeLossConfig(Block):
    """SLiC's hinge on DPO's margin, Liu et al. 2023."""

    name: Literal["hinge"] = semantic("hinge", "Which loss this is.")
    beta: float = _beta(0.1, "The loss is zero from a margin of 1 / beta nats on.")


class SimPoLossConfig(Block):
    """Mean log-probabilities and a target margin, without a reference; Meng et al. 2024."""

    name: Literal["simpo"] = semantic("simpo", "Which loss this is.")
    beta: float = _beta(2.0, "Per nat and token; 2 to 10 in the paper.")
    gamma: float = semantic(1.0, "Target margin; the paper's gamma / beta is 0.3 to 1.6.", ge=0)


class OrpoLossConfig(Block):
    """NLL of the chosen response plus the log odds ratio, without a reference; Hong et al. 2024."""

    name: Literal["orpo"] = semantic("orpo", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's lambda.")


class DpoNormLossConfig(Block):
    """DPO on log-ratios averaged over the response's tokens, Lambert et al. 2024 (Tulu 3)."""

    name: Literal["dpo_norm"] = semantic("dpo_norm", "Which loss this is.")
    beta: float = _beta(5.0, "Per nat and token (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


PreferenceLossConfig = Annotated[
    DpoLossConfig
    | RobustLossConfig
    | IpoLossConfig
    | IpoSummedLossConfig
    | HingeLossConfig
    | SimPoLossConfig
    | OrpoLossConfig
    | DpoNormLossConfig,
    Field(discriminator="name"),
]


class KtoLossConfig(Block):
    """Kahneman-Tversky optimisation, Ethayarajh et al. 2024."""

    name: Literal["kto"] = semantic("kto", "Which loss this is.")
    beta: float = _beta(0.1, "Strength of the pull to the reference (paper's default).")
    desirable_weight: float = semantic(
        1.0,
        "Weight of desirable responses; times their number it should be 1 to 1.33 times "
        "the same product of the undesirable ones.",
        gt=0,
    )
    undesirable_weight: float = semantic(1.0, "Weight of undesirable responses.", gt=0)
