"""Losses on pairs and on rated responses, with defaults from their papers.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import Field

from stages.configs.block import Block, semantic

SMOOTHING = "Assumed share of flipped labels."


def _beta(default: float, description: str) -> Any:
    return semantic(default, description, gt=0)


class PairLossConfig(Block):
    """What every loss on pairs has; a subclass in this module is a choice of `dpo.loss`.

    Its name is a row of `PREFERENCE_LOSSES`, and its other fields are keyword arguments of that
    row's function.
    """

    default_nll_coef: ClassVar[float] = 0.0
    """What `dpo.nll_coef` is where nobody sets it; a loss that needs the term says otherwise."""

    beta: float = _beta(0.1, "Strength of the pull to the reference.")

    @property
    def row(self) -> str:
        """Its name."""
        return type(self).model_fields["name"].default

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Keyword arguments of the row's function."""
        return self.model_dump(exclude={"name"})


class DpoLossConfig(PairLossConfig):
    """Sigmoid loss of Rafailov et al. 2023; label smoothing makes it cDPO."""

    name: Literal["dpo"] = semantic("dpo", "Which loss this is.")
    beta: float = _beta(0.1, "Strength of the pull to the reference (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


class RobustLossConfig(PairLossConfig):
    """DPO whose mean under flipped labels is the loss under true ones, Chowdhury et al. 2024."""

    name: Literal["robust"] = semantic("robust", "Which loss this is.")
    beta: float = _beta(0.1, "As for dpo.")
    label_smoothing: float = semantic(0.1, SMOOTHING, ge=0, lt=0.5)


class IpoLossConfig(PairLossConfig):
    """Squared loss of Azar et al. 2023 on log-ratios averaged over the response's tokens."""

    name: Literal["ipo"] = semantic("ipo", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's tau, per token.")


class IpoSummedLossConfig(PairLossConfig):
    """The same on summed log-ratios, as OpenRLHF has it."""

    name: Literal["ipo_summed"] = semantic("ipo_summed", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's tau, per response.")


class HingeLossConfig(PairLossConfig):
    """SLiC's hinge on DPO's margin, Liu et al. 2023."""

    name: Literal["hinge"] = semantic("hinge", "Which loss this is.")
    beta: float = _beta(0.1, "The loss is zero from a margin of 1 / beta nats on.")


class SimPoLossConfig(PairLossConfig):
    """Mean log-probabilities and a target margin, without a reference; Meng et al. 2024."""

    name: Literal["simpo"] = semantic("simpo", "Which loss this is.")
    beta: float = _beta(2.0, "Per nat and token; 2 to 10 in the paper.")
    gamma: float = semantic(1.0, "Target margin; the paper's gamma / beta is 0.3 to 1.6.", ge=0)


class OrpoLossConfig(PairLossConfig):
    """NLL of the chosen response plus the log odds ratio, without a reference; Hong et al. 2024."""

    name: Literal["orpo"] = semantic("orpo", "Which loss this is.")
    beta: float = _beta(0.1, "The paper's lambda.")


class DpoNormLossConfig(PairLossConfig):
    """DPO on log-ratios averaged over the response's tokens, Lambert et al. 2024 (Tulu 3)."""

    name: Literal["dpo_norm"] = semantic("dpo_norm", "Which loss this is.")
    beta: float = _beta(5.0, "Per nat and token (paper's default).")
    label_smoothing: float = semantic(0.0, SMOOTHING, ge=0, lt=0.5)


if TYPE_CHECKING:
    PreferenceLossConfig: TypeAlias = PairLossConfig
else:  # each of the above, told apart by name
    PreferenceLossConfig = Annotated[
        Union[tuple(PairLossConfig.__subclasses__())],  # noqa: UP007 - built from a list
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
