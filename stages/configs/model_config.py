"""Where a model's weights come from, and how the model is loaded.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stages.configs.block import Block, operational, semantic
from stages.configs.hub_id import require_hub_id
from training_core.models.options import LoadOptions, LoraOptions

MAX_SCRATCH_WEIGHTS = 1_000_000_000


class ScratchModelConfig(Block):
    """A small Llama with random weights and one token per word of the training data."""

    name: Literal["scratch"] = semantic("scratch", "Kind of the base model.")
    hidden_size: int = semantic(
        128, "Width; vLLM on a CPU needs hidden_size / num_heads >= 32.", gt=0, le=65_536
    )
    num_layers: int = semantic(2, "Number of transformer layers.", gt=0, le=1000)
    num_heads: int = semantic(4, "Number of attention heads; divides the width.", gt=0)
    intermediate_size: int = semantic(384, "Width of the feed-forward part.", gt=0, le=1_000_000)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        """Refuse heads that do not divide the width evenly, and models that are far too large."""
        if self.hidden_size % (2 * self.num_heads):  # rotary positions turn pairs of numbers
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of 2 * num_heads = "
                f"{2 * self.num_heads}; change one of them"
            )
        weights = (
            self.num_layers * self.hidden_size * (4 * self.hidden_size + 3 * self.intermediate_size)
        )
        if weights > MAX_SCRATCH_WEIGHTS:
            raise ValueError(
                f"the layers would have {weights:,} weights, and a scratch model may have at most "
                f"{MAX_SCRATCH_WEIGHTS:,}; lower num_layers or the widths, or use a trained model"
            )
        return self


class LocalModelConfig(Block):
    """A Hugging Face directory; its content is part of the stage key."""

    name: Literal["local"] = semantic("local", "Kind of the base model.")
    path: str = operational(..., "Directory, relative to `data_root`.")


class HubModelConfig(Block):
    """A model of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Kind of the base model.")
    repo: Annotated[str, AfterValidator(require_hub_id)] = semantic(
        ..., "Repository id, i.e. owner/name."
    )
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )


BaseModelConfig = Annotated[
    ScratchModelConfig | LocalModelConfig | HubModelConfig, Field(discriminator="name")
]


ExternalModelConfig = Annotated[LocalModelConfig | HubModelConfig, Field(discriminator="name")]


class LoraAdapterConfig(Block):
    """A low-rank adapter: trained instead of the weights, and merged into them when saving."""

    rank: int = semantic(16, "Rank of each matrix's update.", gt=0, le=65_536)
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
        "Type of the weights and the computation. A trained bfloat16 weight also has a float32 "
        "copy, because it has only about 3 digits, and small updates would be lost.",
    )
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = operational(
        "auto",
        "Attention implementation; `auto` uses the default of transformers, and `eager` for models "
        "that cap their attention scores (Gemma 2).",
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

    @model_validator(mode="after")
    def _leaves_something_to_train(self) -> ModelConfig:
        for pattern in self.frozen:
            if not pattern.strip("*"):
                raise ValueError(
                    f"frozen: '{pattern}' matches every parameter, so nothing would be trained; "
                    "remove it"
                )
        return self

    @model_validator(mode="after")
    def _has_a_type_for_its_attention(self) -> ModelConfig:
        if self.attention == "flash_attention_2" and self.dtype != "bfloat16":
            raise ValueError(
                f"attention=flash_attention_2 needs dtype=bfloat16, found {self.dtype}; "
                "change one of the two"
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


class FrozenModelsConfig(Block):
    """How a stage holds the models that it only uses: policies, reference and reward model."""

    dtype: Literal["float32", "bfloat16"] = semantic(
        "float32",
        "Type of their weights and computation. PPO's reference has that of the policy instead, so "
        "that their KL starts at zero.",
    )
    offload: bool = operational(
        False,
        "Keep their weights in CPU memory, and copy those of a model to the GPU only while it "
        "computes.",
    )
    shard: bool = operational(
        False,
        "Divide their weights among the workers; those of one layer at a time are gathered while a "
        "model computes. With `offload` the parts are in CPU memory, also of a single worker.",
    )

    def load_options(self) -> LoadOptions:
        """Return the options for `training_core.models.hub`."""
        return LoadOptions(dtype=self.dtype)


class PreferenceModelConfig(ModelConfig):
    """How a policy is loaded for training on preferences."""

    dropout: bool = semantic(
        False,
        "Keep the dropout of the model's own layers (e.g. 0.1 in GPT-2) in training. With it, the "
        "policy differs from its reference before the first step; `lora.dropout` is separate.",
    )

    def load_options(self, *, seed: int) -> LoadOptions:
        """Return the options for `training_core.models.hub`; see `ModelConfig`."""
        return replace(super().load_options(seed=seed), dropout=self.dropout)
