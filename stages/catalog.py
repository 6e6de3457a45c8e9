"""The records of all stages: `STAGE` of every module `stages/configs/<stage>_config.py`.

Importing this module imports no torch. The module of a stage is imported when the stage runs.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from stages import configs
from stages.configs.block import StageConfig
from stages.configs.stage_record import StageRecord
from training_core.errors import ConfigError


def _records() -> list[StageRecord]:
    modules = (
        import_module(f"{configs.__name__}.{m.name}") for m in iter_modules(configs.__path__)
    )
    return [module.STAGE for module in modules if hasattr(module, "STAGE")]


STAGES: dict[str, StageRecord] = {record.name: record for record in _records()}
"""The record of each stage, by name."""


def find_stage(name: str) -> StageRecord:
    """Return the record of the stage `name`.

    Raises:
        ConfigError: if there is no such stage; the message names the nearest.
    """
    if name not in STAGES:
        near = get_close_matches(name, STAGES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(STAGES)}"
        raise ConfigError(f"unknown stage '{name}'; {hint}")
    return STAGES[name]


def stage_of(config: StageConfig) -> StageRecord:
    """Return the record of the stage that a config belongs to."""
    return next(record for record in STAGES.values() if record.config is type(config))
