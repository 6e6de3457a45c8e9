"""Where a model's weights come from.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.contract import Block, operational, semantic


class ScratchModel(Block):
    """A small Llama with random weights and one token per word of the training data."""

    name: Literal["scratch"] = semantic("scratch", "Which kind of start this is.")
    hidden_size: int = semantic(
        128, "Width; hidden_size / num_heads >= 32 also runs in vLLM on a CPU.", gt=0
    )
    num_layers: int = semantic(2, "Transformer layers.", gt=0)
    num_heads: int = semantic(4, "Attention heads.", gt=0)
    intermediate_size: int = semantic(384, "Width of the feed-forward part.", gt=0)


class LocalModel(Block):
    """A Hugging Face directory; its content is part of the stage key."""

    name: Literal["local"] = semantic("local", "Which kind of start this is.")
    path: str = operational(..., "Directory, relative to `data_root`.")


class HubModel(Block):
    """A model of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of start this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )


BaseModelSource = Annotated[ScratchModel | LocalModel | HubModel, Field(discriminator="name")]
