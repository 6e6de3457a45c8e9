"""Configuration of the stage `sft`, and its record."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from stages.configs.block import semantic
from stages.configs.canary_record import OF_POLICIES
from stages.configs.data_config import DataConfig
from stages.configs.model_config import BaseModelConfig, ModelConfig
from stages.configs.stage_record import LOSS_CURVE, StageRecord, trained_rows
from stages.configs.template_name import TemplateName
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig
from training_core.data.templates import reward_format
from training_core.errors import ConfigError


class SftConfig(TrainedStageConfig):
    """Configuration of SFT."""

    heldout_metrics = ("heldout_loss",)

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
        None,
        "Trained tokens: every answer of the assistant, the last answer, or everything. None: "
        "`every_turn` of `data`; `last_turn` of the input `dataset`, because only the last answer "
        "was sampled and selected.",
        validate_default=True,
    )
    reward_suffix: str | None = semantic(
        None, "Format with {reward}, appended to each prompt (conditional SFT); None is plain SFT."
    )
    chat_template: TemplateName | None = semantic(
        None,
        'Name of a template, a Jinja template, or a plain format, e.g. "User: {}\\nAssistant: "; '
        "None keeps the tokenizer's template.",
    )
    pad_token: str | None = semantic(None, "Padding token; None keeps the tokenizer's token.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is trained.")

    @field_validator("train_on", mode="before")
    @classmethod
    def _is_the_selected_answer_if_unset(cls, value: object, info: ValidationInfo) -> object:
        if value is not None:
            return value
        return "last_turn" if info.data.get("data") is None else "every_turn"

    @field_validator("reward_suffix")
    @classmethod
    def _is_a_format(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                reward_format(value)
            except ConfigError as error:
                raise ValueError(str(error).removeprefix("reward_suffix: ")) from error
        return value


STAGE = StageRecord(
    name="sft",
    version=2,
    config=SftConfig,
    makes="policy",
    optional={"policy": "policy", "dataset": "dataset"},
    reads=trained_rows("demonstrations"),
    trains=True,
    canaries=OF_POLICIES,
    headline="held-out loss {heldout_loss_before->heldout_loss}",
    curves=LOSS_CURVE,
)
