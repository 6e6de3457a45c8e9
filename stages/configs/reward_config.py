"""What scores responses: one block per reward, told apart by `name`.

What a name builds stands in the table of `stages.sampling.rewards`. Reading it imports neither
torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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


RewardConfig = Annotated[
    CafeRewardConfig | LexiconRewardConfig | RewardModelRewardConfig, Field(discriminator="name")
]
