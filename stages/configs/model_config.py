"""Where a model's weights come from, and how the model is loaded.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.configs.block import Block, operational, semantic
from training_core.models.options import LoadOptions, LoraOptions


class ScratchModelConfig(Block):
    """A small Llama with random weights and one token per word of the training data."""

    name: Literal["scratch"] = semantic("scratch", "Kind of the base model.")
    hidden_size: int = semantic(
        128, "Width; vLLM on a CPU needs hidden_size / num_heads >= 32.", gt=0
    )
    num_layers: int = semantic(2, "Number of transformer layers.", gt=0)
    num_heads: int = semantic(4, "Number of attention heads.", gt=0)
    intermediate_size: int = semantic(384, "Width of the feed-forward part.", gt=0)


class LocalModelConfig(Block):
    """A Hugging Face directory; its content is part of the stage key."""

    name: Literal["local"] = semantic("local", "Kind of the base model.")
    path: str = operational(..., "Directory, relative to `data_root`.")


class HubModelConfig(Block):
    """A model of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Kind of the base model.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )


BaseModelConfig = Annotated[
    ScratchModelConfig | LocalModelConfig | HubModelConfig, Field(discriminator="name")
]


class LoraAdapterConfig(Block):
    """A low-rank adapter: trained instead of the weights, and merged into them when saving."""

    rank: int = semantic(16, "Rank of each matrix's update.", gt=0)
    alpha: float = semantic(
        32.0, "The update is scaled by alpha / rank (32: Schulman et al. 2025).", gt=0
    )
    dropout: float = semantic(0.0, "Share of the adapter's inputs dropped in training.", ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = semantic(
        "all-linear",
        "Adapted matrices: `all-linear` for all of the transformer body, including experts and "
        "routers, or a list of last parts of module names, e.g. [q_proj, v_proj].",
    )
    load_in_4bit: bool = semantic(
        False, "Store the frozen weights in 4 bits (QLoRA); needs the extra `qlora`."
    )


class ModelConfig(Block):
    """How a model is loaded for training."""

    dtype: Literal["float32", "bfloat16"] = semantic(
        "float32",
        "Type of the weights and the computation. A bfloat16 weight has about 3 digits, so small "
        "updates are lost: use it with an adapter or an engine that keeps float32 copies.",
    )
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = operational(
        "auto", "Attention implementation; `auto` uses the default of transformers."
    )
    gradient_checkpointing: bool = operational(
        False,
        "Compute activations again in the backward pass instead of storing them: much less memory, "
        "about a third more time, the same gradient.",
    )
    frozen: tuple[str, ...] = semantic(
        (),
        "Shell patterns of parameter names that are not trained, e.g. `model.layers.[0-3].*`; "
        "each must match at least one parameter.",
    )
    lora: LoraAdapterConfig | None = semantic(
        None, "Train an adapter; None trains the weights themselves."
    )
    moe_aux_loss_coef: float = semantic(
        0.0,
        "Weight of the load-balancing loss of a mixture of experts, computed per sequence; "
        "0 disables it (0.001 is common).",
        ge=0,
    )

    @model_validator(mode="after")
    def _freezes_one_way(self) -> ModelConfig:
        if self.lora is not None and self.frozen:
            raise ValueError(
                "`lora` already freezes every weight of the model, so `frozen` has no effect; "
                "remove it, and choose the adapted layers with lora.target_modules"
            )
        return self

    def untrained(self) -> ModelConfig:
        """Return the options of a model that is not trained, e.g. a reference or a teacher."""
        return self.model_copy(update={"lora": None, "frozen": (), "gradient_checkpointing": False})

    def load_options(self, *, seed: int) -> LoadOptions:
        """Return the options for `training_core.models.hub`.

        Args:
            seed: seed of the stage; the adapter's random initialisation depends only on it.
        """
        return LoadOptions(
            dtype=self.dtype,
            attention=self.attention,
            gradient_checkpointing=self.gradient_checkpointing,
            frozen=self.frozen,
            lora=None if self.lora is None else LoraOptions(**self.lora.model_dump()),
            seed=seed,
        )
