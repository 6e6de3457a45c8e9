"""Configuration of the stage `sft`, and its record."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from stages.configs.block import StageConfig, semantic
from stages.configs.data_config import DataConfig
from stages.configs.model_config import BaseModelConfig, ModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.training_config import TrainingConfig
from training_core.data.templates import chat_template
from training_core.errors import ConfigError


class SftConfig(StageConfig):
    """Configuration of SFT."""

    base: BaseModelConfig | None = semantic(
        None, "Base model; None starts from the input `policy`."
    )
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    data: DataConfig | None = semantic(None, "Training rows; None uses the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out rows for `heldout_loss`.")
    rows: Literal["demonstrations", "texts"] = semantic(
        "demonstrations", "Kind of rows; `texts` is continued pre-training."
    )
    train_on: Literal["every_turn", "last_turn", "all_tokens"] = semantic(
        "every_turn",
        "Trained tokens: every answer of the assistant, the last answer, or everything.",
    )
    reward_suffix: str | None = semantic(
        None, "Format with {reward}, appended to each prompt (conditional SFT); None is plain SFT."
    )
    chat_template: str | None = semantic(
        None,
        'Name of a template, a Jinja template, or a plain format, e.g. "User: {}\\nAssistant: "; '
        "None keeps the tokenizer's template.",
    )
    pad_token: str | None = semantic(None, "Padding token; None keeps the tokenizer's token.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is trained.")

    @field_validator("chat_template")
    @classmethod
    def _is_a_template(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                chat_template(value)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return value


STAGE = StageRecord(
    name="sft",
    version=1,
    config=SftConfig,
    makes="policy",
    optional={"policy": "policy", "dataset": "dataset"},
    reads=trained_rows("demonstrations"),
    trains=True,
    headline="held-out loss {heldout_loss_before->heldout_loss}",
    curves=LOSS_CURVE,
)
