"""What scores responses: one block per reward, told apart by `name`.

What a name builds stands in the table of `stages.sampling.rewards`. Reading it imports neither
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

    name: Literal["cafe"] = semantic("cafe", "Which reward this is.")


class LexiconRewardConfig(Block):
    """Sentiment by a lexicon: a jsonl(.gz) file with `token` and `mean`."""

    name: Literal["lexicon"] = semantic("lexicon", "Which reward this is.")
    path: str = operational(..., "File, relative to `data_root`.")
    ignore: tuple[str, ...] = semantic((), "Literal strings that are cut out first.")


class RewardModelRewardConfig(Block):
    """The reward model that this lifecycle trained."""

    name: Literal["reward_model"] = semantic("reward_model", "Which reward this is.")
    normalise: bool = semantic(
        True, "Shift and scale by the mean and deviation stored with the model."
    )


class PythonRewardConfig(Block):
    """A Python function of one's own; docs/rewards.md says what it gets and returns.

    The function's name and the content of its code are part of the stage key.
    """

    name: Literal["python"] = semantic("python", "Which reward this is.")
    path: str = operational(
        ...,
        "`file.py:function`, relative to `data_root`, or `package.module:function`, importable.",
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
        if json.loads(text) != arguments:  # e.g. keys that are numbers, which come back as texts
            raise ValueError(expected)
        return arguments

    @property
    def code(self) -> Path | str:
        """The file, or the dotted name of the module, that the function is in."""
        code = self.path.rpartition(":")[0]
        return Path(code) if code.endswith(".py") else code

    @property
    def function(self) -> str:
        """The function's name."""
        return self.path.rpartition(":")[2]


RewardConfig = Annotated[
    CafeRewardConfig | LexiconRewardConfig | RewardModelRewardConfig | PythonRewardConfig,
    Field(discriminator="name"),
]
