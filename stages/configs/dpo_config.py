"""Configuration of the stage `dpo`."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.loss_config import DpoLossConfig, PreferenceLossConfig
from stages.configs.model_config import ModelConfig
from stages.configs.training_config import TrainingConfig


class DpoConfig(StageConfig):
    """Configuration of DPO."""

    loss: PreferenceLossConfig = semantic(DpoLossConfig(), "Loss of a pair.")
    nll_coef: float = semantic(
        0.0, "Weight of the chosen response's mean NLL (RPO; Llama 3.1 uses 0.2).", ge=0
    )
    data: DataConfig | None = semantic(None, "Preference pairs; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out pairs for the `heldout_…` metrics.")
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the policy is trained.")
