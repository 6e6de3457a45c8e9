"""Configuration of the stage `process_reward`, and its record."""

from __future__ import annotations

from stages.configs.block import semantic
from stages.configs.canary_record import OF_SCORERS
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig


class ProcessRewardConfig(TrainedStageConfig):
    """Configuration of the process reward model."""

    heldout_metrics = ("heldout_accuracy", "heldout_majority", "heldout_steps")

    data: DataConfig | None = semantic(
        None, "Solutions with labelled steps; None uses the input `dataset`."
    )
    eval_data: DataConfig | None = semantic(
        None, "Held-out solutions; None uses `heldout_fraction` of the data."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the solutions that is held out if eval_data is None.", ge=0, lt=1
    )
    separator: str = semantic("\n", "Text after each step; it is tokenised separately.")
    placeholder: str = semantic(
        "ки",
        "Mark at the end of each step, for rows with question and steps in one text (OpenRLHF).",
    )
    first_step: str | None = semantic(
        "Step 1:", "Beginning of the first step in such rows; None: the whole text is steps."
    )
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    training: TrainingConfig = semantic(
        TrainingConfig(), "How the model is trained; batch_size counts solutions."
    )


STAGE = StageRecord(
    name="process_reward",
    version=2,
    config=ProcessRewardConfig,
    makes="process_reward_model",
    required={"policy": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("solutions"),
    trains=True,
    canaries=OF_SCORERS,
    headline="held-out step accuracy {heldout_accuracy} (majority {heldout_majority})",
    curves=LOSS_CURVE | {"accuracy": "Steps judged right (fraction)"},
)
