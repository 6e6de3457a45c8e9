"""Configuration of the stage `given_policy`, and its record."""

from __future__ import annotations

from stages.configs.block import StageConfig, semantic
from stages.configs.model_config import ExternalModelConfig
from stages.configs.stage_record import StageRecord
from stages.configs.template_name import TemplateName


class GivenPolicyConfig(StageConfig):
    """A policy that was not trained here: a directory, or a model of the hub."""

    model: ExternalModelConfig = semantic(..., "Where it is.")
    chat_template: TemplateName | None = semantic(
        None, "As `chat_template` of SFT; None keeps the tokenizer's template."
    )
    pad_token: str | None = semantic(None, "Padding token; None keeps the tokenizer's token.")


STAGE = StageRecord(
    name="given_policy",
    version=1,
    config=GivenPolicyConfig,
    makes="policy",
    headline="{parameters} parameters, trained elsewhere",
)
