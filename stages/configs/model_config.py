"""Where a model's weights come from, and what it is loaded as.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.configs.block import Block, operational, semantic
from training_core.models.options import LoadOptions, LoraOptions


class ScratchModelConfig(Block):
    """A small Llama with random weights and one token per word of the training data."""

    name: Literal["scratch"] = semantic("scratch", "Which kind of start this is.")
    hidden_size: int = semantic(
        128, "Width; hidden_size / num_heads >= 32 also runs in vLLM on a CPU.", gt=0
    )
    num_layers: int = semantic(2, "Transformer layers.", gt=0)
    num_heads: int = semantic(4, "Attention heads.", gt=0)
    intermediate_size: int = semantic(384, "Width of the feed-forward part.", gt=0)


class LocalModelConfig(Block):
    """A Hugging Face directory; its content is part of the stage key."""

    name: Literal["local"] = semantic("local", "Which kind of start this is.")
    path: str = operational(..., "Directory, relative to `data_root`.")


class HubModelConfig(Block):
    """A model of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of start this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )


BaseModelConfig = Annotated[
    ScratchModelConfig | LocalModelConfig | HubModelConfig, Field(discriminator="name")
]


class LoraAdapterConfig(Block):
    """A low-rank adapter that is trained instead of the weights, and merged into them on saving."""

    rank: int = semantic(16, "Rank of the change of each matrix.", gt=0)
    alpha: float = semantic(
        32.0, "The change is scaled by alpha / rank (32: Schulman et al. 2025).", gt=0
    )
    dropout: float = semantic(0.0, "Share of the adapter's inputs dropped in training.", ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = semantic(
        "all-linear",
        "Which matrices: all of the body (experts and routers too), or last parts of module names, "
        "as in [q_proj, v_proj].",
    )
    load_in_4bit: bool = semantic(
        False, "Hold the frozen weights in 4 bits (QLoRA); needs the extra `qlora`."
    )


class ModelConfig(Block):
    """What a model is loaded as for training."""

    dtype: Literal["float32", "bfloat16"] = semantic(
        "float32",
        "Of the weights and the computation. In bfloat16 a weight keeps 3 digits, so that small "
        "steps are lost: use it under an adapter, or with an engine that keeps float32 copies.",
    )
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = operational(
        "auto", "Attention implementation; auto takes transformers' choice."
    )
    gradient_checkpointing: bool = operational(
        False,
        "Compute activations again in the backward pass instead of keeping them: much less memory, "
        "about a third more time, the same gradient.",
    )
    frozen: tuple[str, ...] = semantic(
        (),
        "Shell patterns of parameter names that stay as they are, as in `model.layers.[0-3].*`; "
        "each must match something.",
    )
    lora: LoraAdapterConfig | None = semantic(
        None, "Train an adapter; None trains the weights themselves."
    )
    moe_aux_loss_coef: float = semantic(
        0.0,
        "Weight of the load-balancing loss of a mixture of experts, taken over each sequence; "
        "0 leaves it out (0.001 is usual).",
        ge=0,
    )

    @model_validator(mode="after")
    def _freezes_one_way(self) -> ModelConfig:
        if self.lora is not None and self.frozen:
            raise ValueError(
                "`lora` freezes every weight of the model, so `frozen` has nothing to say: drop "
                "it, and choose the adapted layers with lora.target_modules"
            )
        return self

    def untrained(self) -> ModelConfig:
        """Return the options of a model that is only asked, as a reference or a teacher."""
        return self.model_copy(update={"lora": None, "frozen": (), "gradient_checkpointing": False})

    def load_options(self, *, seed: int) -> LoadOptions:
        """Return what `training_core.models.hub` takes.

        Args:
            seed: of the stage; the adapter's random start depends on it alone.
        """
        return LoadOptions(
            dtype=self.dtype,
            attention=self.attention,
            gradient_checkpointing=self.gradient_checkpointing,
            frozen=self.frozen,
            lora=None if self.lora is None else LoraOptions(**self.lora.model_dump()),
            seed=seed,
        )
