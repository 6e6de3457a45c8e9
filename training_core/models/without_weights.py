"""Models without weights: to check options against a model before anything is loaded."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from training_core.errors import ConfigError
from training_core.models.options import LoadOptions
from training_core.models.preparing import prepare, require_packages

KINDS: dict[str, tuple[Any, int | None]] = {
    "policy": (AutoModelForCausalLM, None),
    "reward_model": (AutoModelForSequenceClassification, 1),
    "process_reward_model": (AutoModelForTokenClassification, 2),
}
"""Kind of the artifact -> class of the trained model, and the outputs of its head."""


def problem_with(options: LoadOptions, config: Any, kind: str) -> str | None:
    """Return why a model cannot be trained with `options`; None if it can.

    Args:
        options: as the stage loads the model.
        config: transformers' config of the model.
        kind: kind of the stage's artifact.
    """
    try:
        require_packages(options)
        if options.frozen or options.lora is not None:
            with torch.device("meta"):
                prepare(_empty(config, kind), options)
    except ConfigError as error:
        return str(error)
    return None


def _empty(config: Any, kind: str) -> Any:
    auto, outputs = KINDS[kind]
    own = type(config).from_dict(config.to_dict())
    if outputs is not None:
        own.num_labels = outputs
    return auto.from_config(own)
