"""Configuration of rewards: one class per reward; the field `name` selects it.

The table in `stages.sampling.rewards` builds the rewards. Importing this module imports neither
torch nor transformers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from stages.configs.block import Block, operational, semantic


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


class PythonRewardConfig(Block):
    """A user's Python function; docs/rewards.md describes its arguments and its result.

    The function's name and its source are part of the stage key.
    """

    name: Literal["python"] = semantic("python", "Name of the reward.")
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
        expected = "expected what JSON can say"
        try:
            text = json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{expected}: {error}") from error
        if (
            json.loads(text) != arguments
        ):  # e.g. keys that are numbers, because JSON turns them into strings
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


RewardConfig = Annotated[
    CafeRewardConfig | LexiconRewardConfig | RewardModelRewardConfig | PythonRewardConfig,
    Field(discriminator="name"),
]
