"""What a person writes about the stage `process_reward`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.training_config import TrainingConfig


class ProcessRewardConfig(StageConfig):
    """What a person writes about the process reward model."""

    data: DataConfig | None = semantic(
        None, "Solutions with labelled steps; None takes the input `dataset`."
    )
    eval_data: DataConfig | None = semantic(
        None, "Held-out solutions; None holds `heldout_fraction` of the data out."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the solutions held out where eval_data is None.", ge=0, lt=1
    )
    separator: str = semantic("\n", "What is written after each step.")
    placeholder: str = semantic(
        "ки", "What ends each step of rows that have question and steps as one text (OpenRLHF's)."
    )
    first_step: str | None = semantic(
        "Step 1:", "What the first step of such rows begins with; None takes it all as steps."
    )
    model: ModelConfig = semantic(ModelConfig(), "What the model is loaded as.")
    training: TrainingConfig = semantic(
        TrainingConfig(), "How the model is fitted; a batch is of solutions."
    )


STAGE = StageRecord(
    name="process_reward",
    version=1,
    config=ProcessRewardConfig,
    makes="process_reward_model",
    required={"policy": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("solutions"),
    trains=True,
    headline="held-out step accuracy {heldout_accuracy} (majority {heldout_majority})",
    curves=LOSS_CURVE | {"accuracy": "Steps judged right (fraction)"},
)
