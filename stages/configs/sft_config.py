"""What a person writes about the stage `sft`, and its record."""

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
    """What a person writes about SFT."""

    base: BaseModelConfig | None = semantic(
        None, "Where to start; None starts from the input `policy`."
    )
    model: ModelConfig = semantic(ModelConfig(), "What the model is loaded as.")
    data: DataConfig | None = semantic(None, "What to imitate; None takes the input `dataset`.")
    eval_data: DataConfig | None = semantic(None, "Held-out rows for `heldout_loss`.")
    rows: Literal["demonstrations", "texts"] = semantic(
        "demonstrations", "What the data holds; `texts` is continued pre-training."
    )
    train_on: Literal["every_turn", "last_turn", "all_tokens"] = semantic(
        "every_turn", "Which tokens of a demonstration are trained: of the assistant, or all."
    )
    reward_suffix: str | None = semantic(
        None, "Format with {reward} that follows each prompt (conditional SFT); None is plain SFT."
    )
    chat_template: str | None = semantic(
        None,
        'Name of a template, a Jinja template, or a plain format as "User: {}\\nAssistant: "; '
        "None keeps the tokenizer's own.",
    )
    pad_token: str | None = semantic(None, "Token for padding; None keeps the tokenizer's own.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is fitted.")

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
