"""Options for loading a model for training. Importing this module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LoraOptions:
    """A low-rank adapter: W x + (alpha / rank) B A x, with A and B trained and W frozen.

    Attributes:
        rank: rows of A and columns of B.
        alpha: numerator of the scale.
        dropout: share of the adapter's inputs that is dropped in training.
        target_modules: `all-linear` for every linear layer of the body, or a list of last parts
            of module names.
        load_in_4bit: store W in 4 bits (NF4 with double quantisation); needs bitsandbytes.

    Source:
        Hu et al. 2021, https://arxiv.org/abs/2106.09685; 4 bits: Dettmers et al. 2023,
        https://arxiv.org/abs/2305.14314
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"
    load_in_4bit: bool = False


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded.

    Attributes:
        dtype: dtype of the weights and of the computation.
        attention: transformers' name of the attention implementation; `auto` uses its default.
        gradient_checkpointing: compute activations again in the backward pass instead of storing
            them.
        frozen: shell patterns (`*`, `?`, `[0-9]`) of parameter names that are not trained.
        lora: adapter to train instead of the weights.
        seed: seed of the adapter's random initialisation.
        dropout: False disables the dropout of the model's own layers, but not of the adapter.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: str = "auto"
    gradient_checkpointing: bool = False
    frozen: tuple[str, ...] = ()
    lora: LoraOptions | None = None
    seed: int = 0
    dropout: bool = True
