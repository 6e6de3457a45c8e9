"""How a model is fitted: optimizer, schedule, engine, batches, evaluation, checkpoints.

Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from stages.configs.block import Block, operational, semantic

ScheduleName = Literal["constant", "linear", "cosine", "wsd"]


class BaseOptimizerConfig(Block):
    """What every optimizer has: a schedule, decay and clipping."""

    learning_rate: float = semantic(1e-5, "Peak learning rate.", gt=0)
    schedule: ScheduleName = semantic("cosine", "Shape after the warm-up.")
    warmup_fraction: float = semantic(
        0.05, "Share of the steps in which the rate rises.", ge=0, le=1
    )
    min_ratio: float | None = semantic(
        None,
        "Floor, as a share of the peak; None is the schedule's own: 0.1 for cosine, else 0.",
        ge=0,
        le=1,
    )
    decay_fraction: float = semantic(
        0.1,
        "Share of the steps in which `wsd` falls, at the end (MiniCPM, arXiv:2404.06395, §4).",
        gt=0,
        le=1,
    )
    weight_decay: float = semantic(0.0, "Decoupled weight decay, on matrices only.", ge=0)
    max_grad_norm: float = semantic(
        1.0, "The gradient is scaled down to this norm, before the update.", gt=0
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        semantic(
            (0.9, 0.95),
            "Decay of AdamW's two moments (as GPT-3, arXiv:2005.14165, appendix B, and Llama 2).",
        )
    )
    eps: float = semantic(1e-8, "Added to AdamW's denominator (torch's default).", gt=0)


class AdamWConfig(BaseOptimizerConfig):
    """AdamW (Loshchilov & Hutter 2019) and its schedule; meant where no name is given."""

    name: Literal["adamw"] = semantic("adamw", "Which optimizer this is.")


class MuonConfig(BaseOptimizerConfig):
    """Muon on the matrices of the layers; AdamW on embeddings, heads, norms and biases.

    The defaults are those of Moonlight (arXiv:2502.16982, §2.2), whose scaling lets one learning
    rate, tuned for AdamW, serve both.
    """

    name: Literal["muon"] = semantic("muon", "Which optimizer this is.")
    weight_decay: float = semantic(0.1, "Decoupled weight decay, on matrices only.", ge=0)
    momentum: float = semantic(0.95, "Of the orthogonalised update (Jordan 2024).", ge=0, lt=1)
    nesterov: bool = semantic(True, "Whether the momentum looks ahead (Jordan 2024).")
    ns_steps: int = semantic(5, "Newton-Schulz iterations (Jordan 2024).", gt=0, lt=100)
    scaling: Literal["match_rms_adamw", "original"] = semantic(
        "match_rms_adamw",
        "Factor on the rate: 0.2 * sqrt(max(rows, columns)), as Moonlight; "
        "or `original`, sqrt(max(1, rows / columns)), as Jordan, with rates near 0.02.",
    )
    auxiliary_learning_rate: float | None = semantic(
        None, "Peak rate of the auxiliary AdamW; None is `learning_rate`.", gt=0
    )


def _name_or_adamw(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return str(name or "adamw")


OptimizerConfig: TypeAlias = Annotated[
    Annotated[AdamWConfig, Tag("adamw")] | Annotated[MuonConfig, Tag("muon")],
    Discriminator(_name_or_adamw),
]


class ConstantAdamWConfig(AdamWConfig):
    """AdamW at a constant rate: what reinforcement learning starts from."""

    schedule: ScheduleName = semantic("constant", "Shape after the warm-up.")


class ConstantMuonConfig(MuonConfig):
    """Muon at a constant rate."""

    schedule: ScheduleName = semantic("constant", "Shape after the warm-up.")


ConstantOptimizerConfig: TypeAlias = Annotated[
    Annotated[ConstantAdamWConfig, Tag("adamw")] | Annotated[ConstantMuonConfig, Tag("muon")],
    Discriminator(_name_or_adamw),
]


class TorchEngineConfig(Block):
    """Plain torch; on several workers each holds the whole model and they add up gradients."""

    name: Literal["torch"] = operational("torch", "Which engine this is.")


class DeepSpeedEngineConfig(Block):
    """DeepSpeed ZeRO: optimizer, gradients and parameters divided among the workers.

    The mathematics is that of plain torch; only the rounding differs (losses agree to 1e-5).
    """

    name: Literal["deepspeed"] = operational("deepspeed", "Which engine this is.")
    zero_stage: Literal[0, 1, 2, 3] = operational(
        2, "What is divided: nothing, optimizer state, gradients too, parameters too."
    )
    offload_optimizer: bool = operational(
        False, "Keep the optimizer state in host memory (ZeRO 1 to 3)."
    )
    offload_parameters: bool = operational(
        False, "Keep the parameters in host memory (ZeRO 3 alone)."
    )
    tensor_parallel_size: int = operational(
        1, "Workers that share each layer's matrices (AutoTP, with ZeRO 1 or 2).", gt=0
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse what DeepSpeed would refuse later, or ignore."""
        if self.offload_parameters and self.zero_stage != 3:  # noqa: PLR2004
            raise ValueError(
                f"offload_parameters needs zero_stage 3, found {self.zero_stage}; set one of them"
            )
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3, found 0; raise it")
        if self.tensor_parallel_size > 1 and self.zero_stage not in (1, 2):
            raise ValueError(
                f"tensor_parallel_size > 1 needs zero_stage 1 or 2, found {self.zero_stage}; "
                "change one of them"
            )
        return self


EngineConfig: TypeAlias = Annotated[
    TorchEngineConfig | DeepSpeedEngineConfig, Field(discriminator="name")
]


class BestMetricConfig(Block):
    """The number by which checkpoints are compared."""

    metric: str = semantic(..., "One of the evaluation's metrics, as `heldout_loss`.")
    better: Literal["min", "max"] = semantic("min", "Whether the lowest or the highest is best.")


class TrainingConfig(Block):
    """How a model is fitted to a fixed dataset."""

    epochs: float = semantic(1.0, "Passes over the data.", gt=0)
    batch_size: int = semantic(64, "Examples (or pairs) per optimizer step, all workers.", gt=0)
    max_tokens: int = semantic(
        1024, "Longest prompt and response together; longer rows are dropped, never cut.", gt=1
    )
    optimizer: OptimizerConfig = semantic(AdamWConfig(), "Optimizer and schedule.")
    ema_decay: float | None = semantic(
        None,
        "Average the weights with this decay per step, evaluate and export the average "
        "(0.992 in OpenRLHF); None keeps none.",
        ge=0,
        lt=1,
    )
    eval_every_steps: int | None = semantic(
        None, "Optimizer steps between evaluations; None evaluates at the end alone.", gt=0
    )
    best_metric: BestMetricConfig | None = semantic(
        None, "Keep the checkpoint that is best by this metric; None compares none."
    )
    export: Literal["last", "best"] = semantic(
        "last", "Which weights become the artifact; `best` needs best_metric."
    )
    micro_batch_tokens: int = operational(
        8192, "Padded tokens in memory at once; does not change the gradient.", gt=0
    )
    engine: EngineConfig = operational(
        TorchEngineConfig(), "What makes the backward pass and the step; changes only the rounding."
    )
    save_every_steps: int = operational(100, "Optimizer steps between checkpoints.", gt=0)
    keep_checkpoints: int = operational(
        2, "Newest complete checkpoints that stay; the best one stays besides.", gt=0
    )
    keep_checkpoints_gib: float | None = operational(
        None, "Drop old checkpoints beyond this size in GiB; the newest and the best stay.", gt=0
    )

    @model_validator(mode="after")
    def _knows_what_is_best(self) -> Self:
        """Refuse to export the best of nothing."""
        if self.export == "best" and self.best_metric is None:
            raise ValueError("export: best needs best_metric; set it, or export: last")
        if self.export == "best" and self.eval_every_steps is None:
            raise ValueError(
                "export: best needs eval_every_steps: evaluated at the end alone, the best are the "
                "last weights; set it, or export: last"
            )
        return self
