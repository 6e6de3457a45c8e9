"""Where rows come from.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.configs.block import Block, operational, semantic

COLUMNS = "Role (messages, prompt, response, chosen, …; see docs/data.md) -> column."
SKIP_BAD_ROWS = "Drop rows that are not what is expected and count them; False stops at the first."


class CafeDataConfig(Block):
    """The café's rows, made from a seed; see `training_core.data.cafe`."""

    name: Literal["cafe"] = semantic("cafe", "Which kind of source this is.")
    split: Literal["train", "heldout"] = semantic(
        "train", "No order of one split occurs in the other."
    )
    size: int = semantic(1000, "Rows.", gt=0)
    seed: int = semantic(0, "Seed of the generator.")
    flipped_fraction: float = semantic(0.0, "Share of pairs with swapped labels.", ge=0, lt=0.5)


class FileDataConfig(Block):
    """Local files: json, jsonl (also .gz), csv, parquet, arrow, or a saved dataset's folder.

    Their content is part of the stage key.
    """

    name: Literal["files"] = semantic("files", "Which kind of source this is.")
    path: str | tuple[str, ...] = operational(
        ..., "File, saved dataset, glob, or several of them in order, relative to `data_root`."
    )
    split: str | None = semantic(
        None, "Split of a saved dataset that has several; None takes the only one."
    )
    columns: dict[str, str] = semantic({}, COLUMNS)
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)
    sample: int | None = semantic(None, "Of these, use so many at random, in their order.", gt=0)
    sample_seed: int = semantic(0, "Seed of `sample`.")
    skip_bad_rows: bool = semantic(False, SKIP_BAD_ROWS)


class HubDataConfig(Block):
    """A dataset of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of source this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )
    config: str | None = semantic(None, "Configuration (subset) of a repository with several.")
    split: str = semantic("train", "Split to read.")
    columns: dict[str, str] = semantic({}, COLUMNS)
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)
    sample: int | None = semantic(None, "Of these, use so many at random, in their order.", gt=0)
    sample_seed: int = semantic(0, "Seed of `sample`.")
    skip_bad_rows: bool = semantic(False, SKIP_BAD_ROWS)


SingleDataConfig = Annotated[
    CafeDataConfig | FileDataConfig | HubDataConfig, Field(discriminator="name")
]


class MixedPartConfig(Block):
    """One source of a mixture."""

    data: SingleDataConfig = semantic(..., "Its rows.")
    weight: float = semantic(1.0, "Its share, relative to the other parts' weights.", gt=0)


class MixedDataConfig(Block):
    """Several sources in fixed shares, in an order that depends on the seed alone."""

    name: Literal["mixed"] = semantic("mixed", "Which kind of source this is.")
    parts: tuple[MixedPartConfig, ...] = semantic(..., "What is mixed.", min_length=1)
    seed: int = semantic(0, "Seed of the order.")
    exhaustion: Literal["first", "all"] = semantic(
        "first",
        "Where it ends: when the first part has no new row left, or when all were used whole "
        "(the others repeat).",
    )
    size: int | None = semantic(None, "Rows; None gives as many as `exhaustion` says.", gt=0)


DataConfig = Annotated[
    CafeDataConfig | FileDataConfig | HubDataConfig | MixedDataConfig, Field(discriminator="name")
]
