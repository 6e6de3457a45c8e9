"""The options of sampling, which are fields of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from stages.configs.explanation import explain
from stages.configs.sampling_config import TruncatedRolloutConfig
from training_core.errors import ConfigError


def rollout_config(fields: Mapping[str, Any]) -> TruncatedRolloutConfig:
    """Return the config with these fields; those that are None keep their defaults.

    Raises:
        ConfigError: if a value is wrong.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return TruncatedRolloutConfig.model_validate(given)
    except ValidationError as error:
        said = explain(error, TruncatedRolloutConfig)
        raise ConfigError(f"the options do not fit: {said}") from error
