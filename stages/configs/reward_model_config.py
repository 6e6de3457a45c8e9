"""What a person writes about the stage `reward_model`, and its record."""

from __future__ import annotations

from typing import Literal

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.stage_record import PAIR_CURVES, StageRecord, trained_rows
from stages.configs.training_config import TrainingConfig


class RewardModelConfig(StageConfig):
    """What a person writes about the reward model."""

    data: DataConfig | None = semantic(None, "Preference pairs; None takes the input `dataset`.")
    eval_data: DataConfig | None = semantic(
        None, "Held-out pairs; None holds `heldout_fraction` of the data out."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the data held out where eval_data is None.", ge=0, lt=1
    )
    loss: Literal["bradley_terry", "log_exp"] = semantic(
        "bradley_terry", "Both are the same function; log_exp is its name in OpenRLHF."
    )
    use_margin: bool = semantic(False, "Ask each pair for the distance in its field `margin`.")
    centering_coef: float = semantic(
        0.01, "Pull of a pair's mean reward towards 0 (Eisenstein et al. 2023).", ge=0
    )
    model: ModelConfig = semantic(ModelConfig(), "What the model is loaded as.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is fitted.")


STAGE = StageRecord(
    name="reward_model",
    version=1,
    config=RewardModelConfig,
    makes="reward_model",
    required={"policy": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("preferences"),
    trains=True,
    headline="held-out accuracy {heldout_accuracy}",
    curves=PAIR_CURVES,
)
