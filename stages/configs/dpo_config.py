"""Configuration of the stage `dpo`, and its record."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from stages.configs.block import semantic
from stages.configs.canary_record import OF_POLICIES
from stages.configs.data_config import DataConfig
from stages.configs.loss_config import DpoLossConfig, PairLossConfig, PreferenceLossConfig
from stages.configs.model_config import PreferenceModelConfig
from stages.configs.stage_record import PAIR_CURVES, StageRecord, trained_rows
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig


class DpoConfig(TrainedStageConfig):
    """Configuration of DPO."""

    heldout_metrics = ("heldout_accuracy", "heldout_margin")

    loss: PreferenceLossConfig = semantic(DpoLossConfig(), "Loss of a pair.")
    nll_coef: float = semantic(
        None,
        "Weight of the chosen response's mean NLL (RPO; Llama 3.1 uses 0.2); "
        "None uses the default of the loss, which is 0 for most losses.",
        ge=0,
        validate_default=True,
    )
    data: DataConfig | None = semantic(None, "Preference pairs; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out pairs for the `heldout_…` metrics.")
    model: PreferenceModelConfig = semantic(  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
        PreferenceModelConfig(), "Options for loading the model."
    )
    training: TrainingConfig = semantic(TrainingConfig(), "How the policy is trained.")

    @field_validator("nll_coef", mode="before")
    @classmethod
    def _is_the_losss_own_if_unset(cls, value: object, info: ValidationInfo) -> object:
        if value is not None:
            return value
        loss = info.data.get("loss", PairLossConfig)  # an invalid loss is missing here
        return loss.default_nll_coef


STAGE = StageRecord(
    name="dpo",
    version=2,
    config=DpoConfig,
    makes="policy",
    required={"policy": "policy"},
    optional={"reference": "policy", "dataset": "dataset"},
    families={"dataset_": "dataset"},
    reads=trained_rows("preferences"),
    trains=True,
    canaries=(*OF_POLICIES, "equal_reference"),
    headline="{accuracy} of {train_pairs} training pairs ranked right",
    curves=PAIR_CURVES,
)
