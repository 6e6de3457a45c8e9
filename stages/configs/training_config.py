"""How a model is trained: optimizer, schedule, engine, batches, evaluation, checkpoints.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from stages.configs.block import Block, operational, semantic

UNKNOWN_LIMIT = 0.02
UNKNOWN = (
    "Largest allowed share of tokens that the tokenizer does not know, in each dataset; more stop "
    "the stage, because the text is lost."
)
MAX_EPOCHS = 10_000
MAX_SEQUENCE_TOKENS = 2**24
"""Limits far above any use; without them a misspelled number would run for years."""

ScheduleName = Literal["constant", "linear", "cosine", "wsd"]


class BaseOptimizerConfig(Block):
    """The fields of every optimizer: schedule, weight decay and gradient clipping."""

    learning_rate: float = semantic(1e-5, "Peak learning rate.", gt=0)
    schedule: ScheduleName = semantic("cosine", "Shape of the learning rate after the warm-up.")
    warmup_fraction: float = semantic(0.05, "Share of the steps used for the warm-up.", ge=0, le=1)
    min_ratio: float | None = semantic(
        None,
        "Lowest rate, as a share of the peak; None: 0.1 for cosine, 0 for linear and wsd.",
        ge=0,
        le=1,
    )
    decay_fraction: float = semantic(
        0.1,
        "Share of the steps at the end in which `wsd` decays (MiniCPM, arXiv:2404.06395, §4).",
        gt=0,
        le=1,
    )
    weight_decay: float = semantic(0.0, "Decoupled weight decay, only on matrices.", ge=0)
    max_grad_norm: float = semantic(
        1.0, "Largest gradient norm; a larger gradient is scaled down before the update.", gt=0
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        semantic(
            (0.9, 0.95),
            "Decay of AdamW's two moments (as in GPT-3, arXiv:2005.14165, app. B, and Llama 2).",
        )
    )
    eps: float = semantic(1e-8, "Added to AdamW's denominator (torch's default).", gt=0)


class AdamWConfig(BaseOptimizerConfig):
    """AdamW (Loshchilov & Hutter 2019) and its schedule; the default if no name is given."""

    name: Literal["adamw"] = semantic("adamw", "Name of the optimizer.")


class MuonConfig(BaseOptimizerConfig):
    """Muon on the matrices of the layers; AdamW on embeddings, heads, norms and biases.

    The defaults are those of Moonlight (arXiv:2502.16982, §2.2). With its scaling, one learning
    rate that is tuned for AdamW fits both optimizers.
    """

    name: Literal["muon"] = semantic("muon", "Name of the optimizer.")
    weight_decay: float = semantic(0.1, "Decoupled weight decay, only on matrices.", ge=0)
    momentum: float = semantic(0.95, "Momentum of the updates (Jordan 2024).", ge=0, lt=1)
    nesterov: bool = semantic(True, "Use Nesterov momentum (Jordan 2024).")
    ns_steps: int = semantic(5, "Number of Newton-Schulz iterations (Jordan 2024).", gt=0, lt=100)
    scaling: Literal["match_rms_adamw", "original"] = semantic(
        "match_rms_adamw",
        "Factor on the learning rate. `match_rms_adamw`: 0.2 * sqrt(max(rows, columns)), from "
        "Moonlight. `original`: sqrt(max(1, rows / columns)), from Jordan, with rates near 0.02.",
    )
    auxiliary_learning_rate: float | None = semantic(
        None, "Peak rate of the AdamW part; None uses `learning_rate`.", gt=0
    )


def _name_or_adamw(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return str(name or "adamw")


OptimizerConfig: TypeAlias = Annotated[
    Annotated[AdamWConfig, Tag("adamw")] | Annotated[MuonConfig, Tag("muon")],
    Discriminator(_name_or_adamw),
]


class ConstantAdamWConfig(AdamWConfig):
    """AdamW with a constant rate: the default for reinforcement learning."""

    schedule: ScheduleName = semantic("constant", "Shape of the learning rate after the warm-up.")


class ConstantMuonConfig(MuonConfig):
    """Muon with a constant rate."""

    schedule: ScheduleName = semantic("constant", "Shape of the learning rate after the warm-up.")


ConstantOptimizerConfig: TypeAlias = Annotated[
    Annotated[ConstantAdamWConfig, Tag("adamw")] | Annotated[ConstantMuonConfig, Tag("muon")],
    Discriminator(_name_or_adamw),
]


class TorchEngineConfig(Block):
    """Plain torch; each worker holds the full model, and gradients are summed over workers."""

    name: Literal["torch"] = operational("torch", "Name of the engine.")

    @property
    def divides_weights(self) -> bool:
        """Return False: each worker has all weights."""
        return False


class DeepSpeedEngineConfig(Block):
    """DeepSpeed ZeRO: optimizer state, gradients and parameters are sharded over the workers.

    The computation is that of plain torch; only the rounding differs (losses agree to 1e-5).
    """

    name: Literal["deepspeed"] = operational("deepspeed", "Name of the engine.")
    zero_stage: Literal[0, 1, 2, 3] = operational(
        2, "What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."
    )
    offload_optimizer: bool = operational(
        False, "Keep the optimizer state in CPU memory (ZeRO 1 to 3)."
    )
    offload_parameters: bool = operational(
        False, "Keep the parameters in CPU memory (only ZeRO 3)."
    )
    tensor_parallel_size: int = operational(
        1, "Number of workers that share the matrices of a layer (AutoTP, with ZeRO 1 or 2).", gt=0
    )

    @property
    def divides_weights(self) -> bool:
        """Return whether the workers divide the weights, too: ZeRO 3."""
        return self.zero_stage == 3  # noqa: PLR2004 - its number

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse combinations that DeepSpeed would refuse later, or ignore."""
        if self.offload_parameters and not self.divides_weights:
            raise ValueError(
                f"offload_parameters needs zero_stage 3, found {self.zero_stage}; "
                "change one of the two"
            )
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3, found 0; raise it")
        if self.tensor_parallel_size > 1 and self.zero_stage not in (1, 2):
            raise ValueError(
                f"tensor_parallel_size > 1 needs zero_stage 1 or 2, found {self.zero_stage}; "
                "change one of the two"
            )
        return self


EngineConfig: TypeAlias = Annotated[
    TorchEngineConfig | DeepSpeedEngineConfig, Field(discriminator="name")
]


class BestMetricConfig(Block):
    """The metric by which checkpoints are compared."""

    metric: str = semantic(..., "Metric of the held-out evaluation, e.g. `heldout_loss`.")
    better: Literal["min", "max"] = semantic("min", "Whether the lowest or highest value is best.")


class TrainingConfig(Block):
    """How a model is trained on a fixed dataset."""

    epochs: float = semantic(1.0, "Passes over the data.", gt=0, le=MAX_EPOCHS)
    batch_size: int = semantic(64, "Examples (or pairs) per optimizer step of all workers.", gt=0)
    max_tokens: int = semantic(
        1024,
        "Limit of prompt and response together; longer rows are dropped, never cut.",
        gt=1,
        le=MAX_SEQUENCE_TOKENS,
    )
    unknown_limit: float = operational(UNKNOWN_LIMIT, UNKNOWN, ge=0, le=1)
    optimizer: OptimizerConfig = semantic(AdamWConfig(), "Optimizer and schedule.")
    ema_decay: float | None = semantic(
        None,
        "Decay per step of an average of the weights, which is evaluated and exported "
        "(0.992 in OpenRLHF); None uses no average.",
        ge=0,
        lt=1,
    )
    eval_every_steps: int | None = semantic(
        None, "Optimizer steps between evaluations; None evaluates only at the end.", gt=0
    )
    best_metric: BestMetricConfig | None = semantic(
        None, "Keep the checkpoint that is best by this metric; None compares no checkpoints."
    )
    export: Literal["last", "best"] = semantic(
        "last", "Which weights become the artifact; `best` needs best_metric."
    )
    micro_batch_tokens: int = operational(
        8192, "Padded tokens in a micro-batch, at most; does not change the gradient.", gt=0
    )
    engine: EngineConfig = operational(
        TorchEngineConfig(),
        "Engine for backward pass and optimizer step; changes results only by rounding.",
    )
    save_every_steps: int = operational(100, "Optimizer steps between checkpoints.", gt=0)
    keep_checkpoints: int = operational(
        2, "Number of newest complete checkpoints to keep; the best one is kept in addition.", gt=0
    )
    keep_checkpoints_gib: float | None = operational(
        None,
        "Limit in GiB; older checkpoints beyond it are deleted, but not the newest and the best.",
        gt=0,
    )

    @property
    def row_limits(self) -> dict[str, Any]:
        """Keyword arguments of the functions that tokenise rows."""
        return {"max_tokens": self.max_tokens, "unknown_limit": self.unknown_limit}

    @model_validator(mode="after")
    def _knows_what_is_best(self) -> Self:
        """Refuse to export the best checkpoint if no checkpoints are compared."""
        if self.export == "best" and self.best_metric is None:
            raise ValueError("export: best needs best_metric; set best_metric, or export: last")
        if self.export == "best" and self.eval_every_steps is None:
            raise ValueError(
                "export: best needs eval_every_steps: with one evaluation, at the end, the best "
                "weights are the last ones; set eval_every_steps, or export: last"
            )
        return self

    @model_validator(mode="after")
    def _has_an_engine_for_its_optimizer(self) -> Self:
        """Refuse Muon under DeepSpeed, which divides the matrices that Muon needs whole."""
        if isinstance(self.engine, DeepSpeedEngineConfig) and self.optimizer.name != "adamw":
            raise ValueError(
                f"the engine 'deepspeed' supports only the optimizer 'adamw', found "
                f"'{self.optimizer.name}'; choose engine: {{name: torch}}, or adamw"
            )
        return self
