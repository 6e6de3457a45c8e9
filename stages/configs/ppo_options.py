"""Blocks of the stage `ppo` besides reward, advantage and losses.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.configs.block import Block, semantic


class FixedKlConfig(Block):
    """The KL coefficient stays `kl_coef`."""

    name: Literal["fixed"] = semantic("fixed", "Name of the control.")


class AdaptiveKlConfig(Block):
    """The KL coefficient starts at `kl_coef` and steers the KL to a target, Ziegler et al. 2019."""

    name: Literal["adaptive"] = semantic("adaptive", "Name of the control.")
    target: float = semantic(
        6.0, "KL to aim for, in nats per response (value of the authors' code).", gt=0
    )
    horizon: int = semantic(
        10_000, "Responses over which the coefficient adapts (value of the authors' code).", gt=0
    )


KlControlConfig = Annotated[FixedKlConfig | AdaptiveKlConfig, Field(discriminator="name")]


class OverlongConfig(Block):
    """A penalty that grows over the last tokens before the limit, DAPO (Yu et al. 2025)."""

    buffer_tokens: int = semantic(..., "Tokens before the limit in which it grows.", gt=0)
    penalty: float = semantic(
        1.0, "Penalty at the limit, in units of the reward (paper's value).", ge=0
    )


class DynamicSamplingConfig(Block):
    """Groups that teach nothing are dropped and replaced, DAPO (Yu et al. 2025).

    A group is kept if its rewards differ, and if their mean is in range. Rewards are those before
    clipping, normalisation and penalties.
    """

    min_mean: float | None = semantic(
        None, "Lowest mean reward of a group that is kept; None sets no limit."
    )
    max_mean: float | None = semantic(
        None, "Highest mean reward of a group that is kept; None sets no limit."
    )
    oversample: float = semantic(
        1.0,
        "Prompts sampled per missing group. Above 1 there can be more groups than a round needs; "
        "the next round trains on the others first.",
        ge=1,
        le=100,
    )
    max_tries: int = semantic(
        10,
        "Times that a round samples (verl's max_num_gen_batches); then it trains on fewer groups.",
        gt=0,
        le=1000,
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        """Refuse a range of means that no group can have."""
        low, high = self.min_mean, self.max_mean
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"min_mean {low} is above max_mean {high}, so no group would be kept; exchange them"
            )
        return self
