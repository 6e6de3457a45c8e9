"""Configuration of the stage `reward_model`, and its record."""

from __future__ import annotations

from typing import Literal

from stages.configs.admission_config import AdmissionConfig
from stages.configs.block import operational, semantic
from stages.configs.canary_record import OF_SCORERS
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.stage_record import PAIR_CURVES, StageRecord, trained_rows
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig


class RewardModelConfig(TrainedStageConfig):
    """Configuration of the reward model."""

    heldout_metrics = ("heldout_accuracy", "heldout_margin")

    data: DataConfig | None = semantic(None, "Preference pairs; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(
        None, "Held-out pairs; None uses `heldout_fraction` of the data."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the data that is held out if eval_data is None.", ge=0, lt=1
    )
    loss: Literal["bradley_terry", "log_exp"] = semantic(
        "bradley_terry", "Name of the loss; `log_exp` is OpenRLHF's name for the same function."
    )
    use_margin: bool = semantic(False, "Use the field `margin` of each pair in the loss.")
    centering_coef: float = semantic(
        0.01, "Weight of the term that keeps rewards near 0 (Eisenstein et al. 2023).", ge=0
    )
    admission: AdmissionConfig = operational(
        AdmissionConfig(),
        "What it must show before a policy is optimised for it.",
    )
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is trained.")


STAGE = StageRecord(
    name="reward_model",
    version=2,
    config=RewardModelConfig,
    makes="reward_model",
    required={"policy": "policy"},
    optional={"dataset": "dataset"},
    reads=trained_rows("preferences"),
    trains=True,
    canaries=OF_SCORERS,
    headline="held-out accuracy {heldout_accuracy}",
    curves=PAIR_CURVES,
)
