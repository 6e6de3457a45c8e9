"""What a person writes about the stage `distillation`, and its record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.configs.block import Block, StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.training_config import TrainingConfig


class ForwardKlConfig(Block):
    """KL(teacher || student): the student covers what the teacher does."""

    name: Literal["forward_kl"] = semantic("forward_kl", "Which divergence this is.")


class ReverseKlConfig(Block):
    """KL(student || teacher): the student seeks what the teacher likes best."""

    name: Literal["reverse_kl"] = semantic("reverse_kl", "Which divergence this is.")


class JsdConfig(Block):
    """Generalised Jensen-Shannon divergence of Agarwal et al. 2023 (GKD)."""

    name: Literal["jsd"] = semantic("jsd", "Which divergence this is.")
    beta: float = semantic(0.5, "Towards forward KL at 0, reverse KL at 1.", gt=0, lt=1)


class DistillationConfig(StageConfig):
    """What a person writes about the stage `distillation`, and its record."""

    divergence: Annotated[
        ForwardKlConfig | ReverseKlConfig | JsdConfig, Field(discriminator="name")
    ] = semantic(ForwardKlConfig(), "How far student and teacher are apart at a token.")
    data: DataConfig | None = semantic(None, "Demonstrations; None takes the input `dataset`.")
    eval_data: DataConfig | None = semantic(
        None, "Held-out demonstrations for `heldout_…` metrics."
    )
    temperature: float = semantic(1.0, "Softens both distributions.", gt=0)
    nll_coef: float = semantic(
        0.0, "Share of the data's own cross-entropy; OpenRLHF's kd has 0.6.", ge=0, le=1
    )
    on_policy_fraction: float = semantic(
        0.0, "Share of the steps on responses that the student samples (GKD's lambda).", ge=0, le=1
    )
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How the student's responses are sampled.")
    model: ModelConfig = semantic(ModelConfig(), "What the model is loaded as.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the student is fitted.")

    @model_validator(mode="after")
    def _imitates_data_alone(self) -> DistillationConfig:
        if self.nll_coef and self.on_policy_fraction:
            raise ValueError(
                "nll_coef is the cross-entropy of the data, and on_policy_fraction trains on the "
                "student's own responses, which it would then imitate; set one of them to 0"
            )
        return self


STAGE = StageRecord(
    name="distillation",
    version=1,
    config=DistillationConfig,
    makes="policy",
    required={"policy": "policy", "teacher": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("demonstrations"),
    trains=True,
    headline="held-out divergence {heldout_divergence_before->heldout_divergence}",
    curves=LOSS_CURVE,
)
