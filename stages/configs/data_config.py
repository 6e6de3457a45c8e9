"""Data sources.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.configs.block import Block, operational, semantic
from stages.configs.column_format import is_format, require_plain_format
from stages.configs.hub_id import require_hub_id

COLUMNS = (
    "Role (messages, prompt, response, chosen, …; see docs/data.md) -> name of the column, or a "
    "format that joins columns, e.g. '{title} {body}'."
)
SKIP_BAD_ROWS = "Drop and count invalid rows; False stops with an error at the first one."
MAX_ROWS = 10_000_000
"""Limit of rows that are made or mixed: all of them are in memory at once."""


def _one_role_each(columns: dict[str, str]) -> dict[str, str]:
    for role, column in columns.items():
        if is_format(column):
            require_plain_format(role, column)
        others = [other for other, same in columns.items() if same == column and other != role]
        if others:
            raise ValueError(
                f"column '{column}' is mapped to both '{role}' and '{others[0]}', so the model "
                "would see one text as both; map each role to its own column"
            )
    return columns


Columns = Annotated[dict[str, str], AfterValidator(_one_role_each)]


class CafeDataConfig(Block):
    """Rows of the café, generated from a seed; see `training_core.data.cafe`."""

    name: Literal["cafe"] = semantic("cafe", "Kind of the source.")
    split: Literal["train", "heldout"] = semantic(
        "train", "Split; no café order is in both splits."
    )
    size: int = semantic(1000, "Number of rows.", gt=0, le=MAX_ROWS)
    seed: int = semantic(0, "Seed of the generator.")
    flipped_fraction: float = semantic(
        0.0, "Share of pairs whose chosen and rejected are swapped.", ge=0, lt=0.5
    )


class FileDataConfig(Block):
    """Local files: json, jsonl (also .gz), csv, tsv, parquet, arrow, or a saved dataset's folder.

    Their content is part of the stage key.
    """

    name: Literal["files"] = semantic("files", "Kind of the source.")
    path: str | tuple[str, ...] = operational(
        ..., "File, folder of a saved dataset, glob, or a list of these; relative to `data_root`."
    )
    split: str | None = semantic(
        None, "Split of a saved dataset; None if the dataset has only one."
    )
    columns: Columns = semantic({}, COLUMNS)
    limit: int | None = semantic(None, "Use only the first rows.", gt=0)
    sample: int | None = semantic(None, "Number of random rows of these, in original order.", gt=0)
    sample_seed: int = semantic(0, "Seed of `sample`.")
    skip_bad_rows: bool = semantic(False, SKIP_BAD_ROWS)


class HubDataConfig(Block):
    """A dataset of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Kind of the source.")
    repo: Annotated[str, AfterValidator(require_hub_id)] = semantic(
        ..., "Repository id, i.e. owner/name."
    )
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )
    config: str | None = semantic(
        None, "Configuration (subset) of the repository, if it has several."
    )
    split: str = semantic("train", "Split to read.")
    columns: Columns = semantic({}, COLUMNS)
    limit: int | None = semantic(None, "Use only the first rows.", gt=0)
    sample: int | None = semantic(None, "Number of random rows of these, in original order.", gt=0)
    sample_seed: int = semantic(0, "Seed of `sample`.")
    skip_bad_rows: bool = semantic(False, SKIP_BAD_ROWS)


SingleDataConfig = Annotated[
    CafeDataConfig | FileDataConfig | HubDataConfig, Field(discriminator="name")
]


class MixedPartConfig(Block):
    """One source of a mixture."""

    data: SingleDataConfig = semantic(..., "Data source.")
    weight: float = semantic(
        1.0, "Share of the mixture, relative to the weights of the other parts.", gt=0
    )


class MixedDataConfig(Block):
    """Several sources in fixed shares, in an order that depends only on the seed."""

    name: Literal["mixed"] = semantic("mixed", "Kind of the source.")
    parts: tuple[MixedPartConfig, ...] = semantic(..., "Sources with their weights.", min_length=1)
    seed: int = semantic(0, "Seed of the order.")
    exhaustion: Literal["first", "all"] = semantic(
        "first",
        "Where the mixture ends. `first`: when the first part has no unused row left. `all`: when "
        "every row of every part was used; shorter parts repeat.",
    )
    size: int | None = semantic(
        None, "Number of rows; None: as many as `exhaustion` allows.", gt=0, le=MAX_ROWS
    )


DataConfig = Annotated[
    CafeDataConfig | FileDataConfig | HubDataConfig | MixedDataConfig, Field(discriminator="name")
]
