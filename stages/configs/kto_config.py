"""Configuration of the stage `kto`, and its record."""

from __future__ import annotations

from stages.configs.block import semantic
from stages.configs.canary_record import OF_POLICIES
from stages.configs.data_config import DataConfig
from stages.configs.loss_config import KtoLossConfig
from stages.configs.model_config import PreferenceModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig


class KtoConfig(TrainedStageConfig):
    """Configuration of KTO."""

    heldout_metrics = ("heldout_margin", "heldout_reward_desirable", "heldout_reward_undesirable")

    loss: KtoLossConfig = semantic(KtoLossConfig(), "Loss of a response.")
    data: DataConfig | None = semantic(None, "Rated responses; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out responses for the `heldout_…` metrics.")
    threshold: float | None = semantic(
        None, "A response is good if its `score` is at least this value; None reads `label`."
    )
    model: PreferenceModelConfig = semantic(  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
        PreferenceModelConfig(), "Options for loading the model."
    )
    training: TrainingConfig = semantic(
        TrainingConfig(),
        "How the policy is trained; use a batch_size of at least 16, because the baseline is a "
        "mean over the batch.",
    )


STAGE = StageRecord(
    name="kto",
    version=2,
    config=KtoConfig,
    makes="policy",
    required={"policy": "policy", "reference": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("unpaired_responses"),
    trains=True,
    canaries=(*OF_POLICIES, "equal_reference"),
    headline="held-out margin {heldout_margin_before->heldout_margin}",
    curves=LOSS_CURVE,
)
