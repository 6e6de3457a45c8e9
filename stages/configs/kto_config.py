"""What a person writes about the stage `kto`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.loss_config import KtoLossConfig
from stages.configs.model_config import ModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.training_config import TrainingConfig


class KtoConfig(StageConfig):
    """What a person writes about KTO."""

    loss: KtoLossConfig = semantic(KtoLossConfig(), "Loss on the response.")
    data: DataConfig | None = semantic(None, "Rated responses; None takes the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out responses for the `heldout_…` metrics.")
    threshold: float | None = semantic(
        None, "A response is good where its `score` is at least this; None reads `label`."
    )
    model: ModelConfig = semantic(ModelConfig(), "What the model is loaded as.")
    training: TrainingConfig = semantic(
        TrainingConfig(),
        "How the policy is fitted; a batch should have at least 16 rows (baseline).",
    )


STAGE = StageRecord(
    name="kto",
    version=1,
    config=KtoConfig,
    makes="policy",
    required={"policy": "policy", "reference": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("unpaired_responses"),
    trains=True,
    headline="held-out margin {heldout_margin_before->heldout_margin}",
    curves=LOSS_CURVE,
)
