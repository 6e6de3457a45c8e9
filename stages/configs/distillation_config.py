"""Configuration of the stage `distillation`, and its record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.configs.block import Block, semantic
from stages.configs.canary_record import OF_POLICIES
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig


class ForwardKlConfig(Block):
    """KL(teacher || student): the student covers all modes of the teacher."""

    name: Literal["forward_kl"] = semantic("forward_kl", "Name of the divergence.")


class ReverseKlConfig(Block):
    """KL(student || teacher): the student concentrates on the teacher's strongest modes."""

    name: Literal["reverse_kl"] = semantic("reverse_kl", "Name of the divergence.")


class JsdConfig(Block):
    """Generalised Jensen-Shannon divergence of Agarwal et al. 2023 (GKD)."""

    name: Literal["jsd"] = semantic("jsd", "Name of the divergence.")
    beta: float = semantic(
        0.5, "Near 0 it is like the forward KL, near 1 like the reverse KL.", gt=0, lt=1
    )


class DistillationConfig(TrainedStageConfig):
    """Configuration of distillation."""

    heldout_metrics = ("heldout_divergence",)

    divergence: Annotated[
        ForwardKlConfig | ReverseKlConfig | JsdConfig, Field(discriminator="name")
    ] = semantic(
        ForwardKlConfig(), "Divergence between the distributions of teacher and student at a token."
    )
    data: DataConfig | None = semantic(None, "Demonstrations; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(
        None, "Held-out demonstrations for the `heldout_…` metrics."
    )
    temperature: float = semantic(1.0, "Temperature of both distributions.", gt=0)
    nll_coef: float = semantic(
        0.0, "Share of the data's cross-entropy in the loss; OpenRLHF's kd uses 0.6.", ge=0, le=1
    )
    on_policy_fraction: float = semantic(
        0.0,
        "Share of steps that train on responses sampled from the student (lambda in GKD).",
        ge=0,
        le=1,
    )
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How the student's responses are sampled.")
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the student is trained.")

    @model_validator(mode="after")
    def _imitates_data_alone(self) -> DistillationConfig:
        if self.nll_coef and self.on_policy_fraction:
            raise ValueError(
                "nll_coef is the cross-entropy of the data, but on_policy_fraction trains on the "
                "student's own responses, so the student would imitate itself; set one of the two "
                "to 0"
            )
        return self


STAGE = StageRecord(
    name="distillation",
    version=3,
    config=DistillationConfig,
    makes="policy",
    required={"policy": "policy", "teacher": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("demonstrations"),
    trains=True,
    canaries=OF_POLICIES,
    headline="held-out divergence {heldout_divergence_before->heldout_divergence}",
    curves=LOSS_CURVE,
)
