"""Losses of pairs and of rated responses, with defaults from their papers.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import Field

from stages.configs.block import Block, TableEntryConfig, semantic

SMOOTHING = "Assumed share of wrong labels."


def _beta(default: float, description: str) -> Any:
    return semantic(default, description, gt=0)


class PairLossConfig(TableEntryConfig):
    """The fields of all losses on pairs; each subclass in this module is a choice of `dpo.loss`.

    Its name is the name of an entry of `PREFERENCE_LOSSES`, and its other fields are keyword
    arguments of that entry's function.
    """

    default_nll_coef: ClassVar[float] = 0.0
    """Default of `dpo.nll_coef`; a loss that needs the term overrides it."""

    beta: float = _beta(0.1, "Strength of the pull to the reference.")


class DpoLossConfig(PairLossConfig):
    """Sigmoid loss of Rafailov et al. 2023; with label smoothing it is cDPO."""

    name: Literal["dpo"] = semantic("dpo", "Name of the loss.")
    beta: float = _beta(0.1, "Strength of the pull to the reference (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


class RobustLossConfig(PairLossConfig):
    """DPO corrected for wrong labels, Chowdhury et al. 2024.

    Its expectation under wrong labels equals the DPO loss under correct labels.
    """

    name: Literal["robust"] = semantic("robust", "Name of the loss.")
    beta: float = _beta(0.1, "Strength of the pull to the reference, as for dpo.")
    label_smoothing: float = semantic(0.1, SMOOTHING, ge=0, lt=0.5)


class IpoLossConfig(PairLossConfig):
    """Squared loss of Azar et al. 2023 on log-ratios averaged over the response's tokens."""

    name: Literal["ipo"] = semantic("ipo", "Name of the loss.")
    beta: float = _beta(0.1, "The paper's tau, per token.")


class IpoSummedLossConfig(PairLossConfig):
    """The loss of `ipo` on summed log-ratios, as in OpenRLHF."""

    name: Literal["ipo_summed"] = semantic("ipo_summed", "Name of the loss.")
    beta: float = _beta(0.1, "The paper's tau, per response.")


class HingeLossConfig(PairLossConfig):
    """Hinge loss of SLiC on DPO's margin, Liu et al. 2023."""

    name: Literal["hinge"] = semantic("hinge", "Name of the loss.")
    beta: float = _beta(0.1, "The loss is zero for margins of at least 1 / beta nats.")


class SimPoLossConfig(PairLossConfig):
    """Mean log-probabilities and a target margin, without a reference; Meng et al. 2024."""

    name: Literal["simpo"] = semantic("simpo", "Name of the loss.")
    beta: float = _beta(2.0, "Scale of the mean log-probabilities; 2 to 10 in the paper.")
    gamma: float = semantic(1.0, "Target margin; gamma / beta is 0.3 to 1.6 in the paper.", ge=0)


class OrpoLossConfig(PairLossConfig):
    """NLL of the chosen response plus the log odds ratio, without a reference; Hong et al. 2024."""

    name: Literal["orpo"] = semantic("orpo", "Name of the loss.")
    beta: float = _beta(0.1, "The paper's lambda.")


class DpoNormLossConfig(PairLossConfig):
    """DPO on log-ratios averaged over the response's tokens, Lambert et al. 2024 (Tulu 3)."""

    name: Literal["dpo_norm"] = semantic("dpo_norm", "Name of the loss.")
    beta: float = _beta(5.0, "Scale of the log-ratios per token (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


if TYPE_CHECKING:
    PreferenceLossConfig: TypeAlias = PairLossConfig
else:  # any of the classes above; `name` selects it
    PreferenceLossConfig = Annotated[
        Union[tuple(PairLossConfig.__subclasses__())],  # noqa: UP007 - built from a list
        Field(discriminator="name"),
    ]


class KtoLossConfig(Block):
    """Kahneman-Tversky optimisation, Ethayarajh et al. 2024."""

    name: Literal["kto"] = semantic("kto", "Name of the loss.")
    beta: float = _beta(0.1, "Strength of the pull to the reference (paper's default).")
    desirable_weight: float = semantic(
        1.0,
        "Weight of desirable responses. This weight times their number should be 1 to 1.33 times "
        "the same product of the undesirable responses.",
        gt=0,
    )
    undesirable_weight: float = semantic(1.0, "Weight of undesirable responses.", gt=0)
