"""Advantage estimators of the stage `ppo`: one class per entry of the table `ADVANTAGES`.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, Union

from pydantic import Field

from stages.configs.block import TableEntryConfig, semantic

AggregationName = Literal["token_mean", "sequence_mean", "sequence_sum_mean", "constant_length"]


class BaseAdvantageConfig(TableEntryConfig):
    """What all estimators have; each subclass in this module is a choice of `ppo.advantage`.

    Its fields, except `name`, are keyword arguments of the function in `ADVANTAGES`.
    """

    needs_critic: ClassVar[bool] = False
    needs_group: ClassVar[bool] = False
    needs_greedy: ClassVar[bool] = False
    needs_parts: ClassVar[bool] = False
    default_aggregation: ClassVar[AggregationName | None] = None
    """Aggregation that belongs to the published algorithm; None leaves it to the policy loss."""


class GaeConfig(BaseAdvantageConfig):
    """Generalised advantage estimation with a critic (PPO), Schulman et al. 2016."""

    needs_critic = True

    name: Literal["gae"] = semantic("gae", "Name of the estimator.")
    gamma: float = semantic(1.0, "Discount per token (Ouyang et al. 2022).", ge=0, le=1)
    gae_lambda: float = semantic(
        0.95, "Trade-off between bias and variance (Stiennon et al. 2020).", ge=0, le=1
    )


class ReinforcePpConfig(BaseAdvantageConfig):
    """REINFORCE++: returns, normalised over the tokens of a round; Hu et al. 2025."""

    name: Literal["reinforce_pp"] = semantic("reinforce_pp", "Name of the estimator.")
    gamma: float = semantic(1.0, "Discount per token (paper's setting).", ge=0, le=1)


class ReinforcePpBaselineConfig(BaseAdvantageConfig):
    """REINFORCE++ with the mean reward of the group as baseline; Hu et al. 2025."""

    needs_group = True

    name: Literal["reinforce_pp_baseline"] = semantic(
        "reinforce_pp_baseline", "Name of the estimator."
    )


class RlooConfig(BaseAdvantageConfig):
    """REINFORCE leave-one-out: minus the mean of the others; Ahmadian et al. 2024."""

    needs_group = True

    name: Literal["rloo"] = semantic("rloo", "Name of the estimator.")


class GrpoConfig(BaseAdvantageConfig):
    """Group-relative advantages in standard deviations; Shao et al. 2024 (DeepSeekMath)."""

    needs_group = True

    name: Literal["grpo"] = semantic("grpo", "Name of the estimator.")
    std_epsilon: float = semantic(
        1e-4, "Added to the standard deviation, in units of the reward (TRL's value).", gt=0
    )


class DrGrpoConfig(BaseAdvantageConfig):
    """GRPO without the bias of its two divisions; Liu et al. 2025."""

    needs_group = True
    default_aggregation = "constant_length"

    name: Literal["dr_grpo"] = semantic("dr_grpo", "Name of the estimator.")


class GdpoConfig(BaseAdvantageConfig):
    """Each part of a weighted reward is normalised by itself, then their sum; Liu et al. 2026."""

    needs_group = True
    needs_parts = True

    name: Literal["gdpo"] = semantic("gdpo", "Name of the estimator.")
    std_epsilon: float = semantic(
        1e-4, "Added to the standard deviations, in units of each part (TRL's value).", gt=0
    )


class RemaxConfig(BaseAdvantageConfig):
    """The greedy response's reward as baseline, which costs one more response per prompt.

    Li et al. 2024.
    """

    needs_greedy = True

    name: Literal["remax"] = semantic("remax", "Name of the estimator.")


if TYPE_CHECKING:
    AdvantageConfig: TypeAlias = BaseAdvantageConfig
else:  # any of the classes above; `name` selects it
    AdvantageConfig = Annotated[
        Union[tuple(BaseAdvantageConfig.__subclasses__())],  # noqa: UP007 - built from a list
        Field(discriminator="name"),
    ]
