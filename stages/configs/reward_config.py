"""Configuration of rewards: one class per reward; the field `name` selects it.

The table in `stages.sampling.rewards` builds the rewards. Importing this module imports neither
torch nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, Field, field_validator, model_validator

from stages.configs.block import Block, operational, semantic
from stages.configs.model_config import ExternalModelConfig
from stages.configs.reward_service_config import HttpRewardConfig, LlmJudgeRewardConfig
from stages.configs.verifier_config import (
    AnswerRewardConfig,
    CodeRewardConfig,
    LengthRewardConfig,
    MathsRewardConfig,
    PatternRewardConfig,
)


class CafeRewardConfig(Block):
    """The café's true reward."""

    name: Literal["cafe"] = semantic("cafe", "Name of the reward.")


class LexiconRewardConfig(Block):
    """Sentiment by a lexicon: a jsonl(.gz) file with `token` and `mean`."""

    name: Literal["lexicon"] = semantic("lexicon", "Name of the reward.")
    path: str = operational(..., "File, relative to `data_root`.")
    ignore: tuple[str, ...] = semantic((), "Literal strings that are cut out first.")


class RewardModelRewardConfig(Block):
    """The reward model that this lifecycle trained."""

    name: Literal["reward_model"] = semantic("reward_model", "Name of the reward.")
    normalise: bool = semantic(
        True, "Shift and scale by the mean and deviation stored with the model."
    )


class ExternalRewardModelRewardConfig(Block):
    """A reward model that was trained elsewhere, e.g. as an independent judge of an evaluation."""

    name: Literal["external_reward_model"] = semantic(
        "external_reward_model", "Name of the reward."
    )
    model: ExternalModelConfig = semantic(
        ...,
        "Sequence classifier with one label and a chat template; its raw score is the reward.",
    )


class FunctionConfig(Block):
    """A user's Python function; docs/rewards.md describes its arguments and its result.

    The function's name and its source are part of the stage key.
    """

    path: str = operational(
        ...,
        "`file.py:function`, relative to `data_root`, or an importable `package.module:function`.",
    )
    arguments: dict[str, object] = semantic({}, "Keyword arguments of the function.")

    @field_validator("path")
    @classmethod
    def _names_a_function(cls, path: str) -> str:
        if not re.fullmatch(r"(.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*", path):
            raise ValueError("expected file.py:function or package.module:function")
        return path

    @field_validator("arguments")
    @classmethod
    def _are_plain(cls, arguments: dict[str, object]) -> dict[str, object]:
        expected = "expected values that JSON can represent"
        try:
            text = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{expected}: {error}") from error
        if json.loads(text) != arguments:  # e.g. JSON turns keys that are numbers into strings
            raise ValueError(expected)
        return arguments

    @property
    def code(self) -> Path | str:
        """File of the function, or dotted name of its module."""
        code = self.path.rpartition(":")[0]
        return Path(code) if code.endswith(".py") else code

    @property
    def function(self) -> str:
        """Name of the function."""
        return self.path.rpartition(":")[2]


class PythonRewardConfig(FunctionConfig):
    """A user's Python function of a rollout."""

    name: Literal["python"] = semantic("python", "Name of the reward.")


SingleReward: TypeAlias = (
    CafeRewardConfig
    | LexiconRewardConfig
    | RewardModelRewardConfig
    | ExternalRewardModelRewardConfig
    | PythonRewardConfig
    | HttpRewardConfig
    | LlmJudgeRewardConfig
    | AnswerRewardConfig
    | MathsRewardConfig
    | CodeRewardConfig
    | PatternRewardConfig
    | LengthRewardConfig
)
"""The rewards that may be parts of others."""


class RewardPartConfig(Block):
    """One of several rewards."""

    reward: Annotated[SingleReward, Field(discriminator="name")] = semantic(..., "The reward.")
    label: str | None = semantic(
        None,
        "Name of its values in metrics and results; None for the name of the reward.",
        pattern=r"^[a-z][a-z0-9_]*$",
    )


class WeightedPartConfig(RewardPartConfig):
    """One of several rewards that are added."""

    weight: float = semantic(1.0, "Factor of its values in the sum.")


PartConfig = TypeVar("PartConfig", bound=RewardPartConfig)


def by_label(parts: Sequence[PartConfig]) -> dict[str, PartConfig]:
    """Return the parts of a reward by their labels.

    Raises:
        ValueError: if two parts have the same label.
    """
    found: dict[str, PartConfig] = {}
    for part in parts:
        label = part.label or part.reward.name
        if label in found:
            raise ValueError(
                f"expected parts with different labels, found '{label}' twice; set `label`"
            )
        found[label] = part
    return found


class WeightedRewardConfig(Block):
    """The weighted sum of several rewards."""

    name: Literal["weighted"] = semantic("weighted", "Name of the reward.")
    parts: tuple[WeightedPartConfig, ...] = semantic(..., "The rewards.", min_length=1)

    @model_validator(mode="after")
    def _has_different_labels(self) -> Self:
        by_label(self.parts)
        return self


class CombinedRewardConfig(FunctionConfig):
    """A user's Python function of the values of several rewards."""

    name: Literal["combined"] = semantic("combined", "Name of the reward.")
    parts: tuple[RewardPartConfig, ...] = semantic(..., "The rewards.", min_length=1)

    @model_validator(mode="after")
    def _has_different_labels(self) -> Self:
        by_label(self.parts)
        return self


RewardConfig = Annotated[
    SingleReward | WeightedRewardConfig | CombinedRewardConfig, Field(discriminator="name")
]


def rewards_in(reward: BaseModel | None) -> list[BaseModel]:
    """Return the configs of the rewards that a reward is made of; its own if it has no parts."""
    if isinstance(reward, WeightedRewardConfig | CombinedRewardConfig):
        return [part.reward for part in reward.parts]
    return [] if reward is None else [reward]
