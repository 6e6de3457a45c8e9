"""Where rows come from.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.contract import Block, operational, semantic


class CafeData(Block):
    """The café's rows, made from a seed; see `training_core.data.cafe`."""

    name: Literal["cafe"] = semantic("cafe", "Which kind of source this is.")
    split: Literal["train", "heldout"] = semantic(
        "train", "No order of one split occurs in the other."
    )
    size: int = semantic(1000, "Rows.", gt=0)
    seed: int = semantic(0, "Seed of the generator.")
    flipped_fraction: float = semantic(0.0, "Share of pairs with swapped labels.", ge=0, lt=0.5)


class FileData(Block):
    """A local file: json, jsonl (also .gz), csv, parquet or arrow.

    Its content is part of the stage key.
    """

    name: Literal["files"] = semantic("files", "Which kind of source this is.")
    path: str = operational(..., "File, relative to `data_root`.")
    columns: dict[str, str] = semantic(
        {}, "Role (messages, prompt, response, chosen, rejected) -> column."
    )
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)


class HubData(Block):
    """A dataset of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of source this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )
    split: str = semantic("train", "Split to read.")
    columns: dict[str, str] = semantic(
        {}, "Role (messages, prompt, response, chosen, rejected) -> column."
    )
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)


Data = Annotated[CafeData | FileData | HubData, Field(discriminator="name")]
