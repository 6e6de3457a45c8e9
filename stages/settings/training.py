"""How a model is fitted: optimizer, schedule, batches, checkpoints.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Literal

from stages.contract import Block, operational, semantic


class Optimizer(Block):
    """AdamW and its schedule."""

    learning_rate: float = semantic(1e-5, "Peak learning rate.", gt=0)
    schedule: Literal["constant", "linear", "cosine"] = semantic(
        "cosine", "Shape after the warm-up."
    )
    warmup_fraction: float = semantic(
        0.05, "Share of the steps in which the rate rises.", ge=0, le=1
    )
    weight_decay: float = semantic(0.0, "Decoupled weight decay, on matrices only.", ge=0)
    max_grad_norm: float = semantic(1.0, "The gradient is scaled down to this norm.", gt=0)


class SteadyOptimizer(Optimizer):
    """AdamW at a constant rate: what reinforcement learning starts from."""

    schedule: Literal["constant", "linear", "cosine"] = semantic(
        "constant", "Shape after the warm-up."
    )


class Training(Block):
    """How a model is fitted to a fixed dataset."""

    epochs: float = semantic(1.0, "Passes over the data.", gt=0)
    batch_size: int = semantic(64, "Examples (or pairs) per optimizer step.", gt=0)
    max_tokens: int = semantic(
        1024, "Longest prompt and response together; longer rows are dropped, never cut.", gt=1
    )
    optimizer: Optimizer = semantic(Optimizer(), "AdamW and its schedule.")
    micro_batch_tokens: int = operational(
        8192, "Padded tokens in memory at once; does not change the gradient.", gt=0
    )
    save_every_steps: int = operational(100, "Optimizer steps between checkpoints.", gt=0)
    keep_checkpoints: int = operational(2, "Complete checkpoints that stay.", gt=0)
