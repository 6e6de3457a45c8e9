"""Which device and which engine a stage trains with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from stages.settings.training import DeepSpeed, Engine, Updates
from training_core.engine.optimizers import OPTIMIZERS
from training_core.engine.protocol import TrainEngine
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError
from training_core.ranks import ALONE, Ranks
from training_core.schedules import learning_rate_factor


def best_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_engine(
    model: Any,
    optimizer: Updates,
    total_steps: int,
    engine: Engine | None = None,
    ranks: Ranks = ALONE,
) -> TrainEngine:
    """Build the engine that `optimizer` and `engine` describe.

    Args:
        model: on its device.
        optimizer: a row of the optimizers' union.
        total_steps: where the schedule ends.
        engine: plain torch if None.
        ranks: this process.

    Raises:
        ConfigError: if the engine has no such optimizer.
    """
    schedule = learning_rate_factor(
        optimizer.schedule,
        warmup_steps=max(1, round(optimizer.warmup_fraction * total_steps)),
        total_steps=total_steps,
        min_ratio=optimizer.min_ratio,
        decay_fraction=optimizer.decay_fraction,
    )
    shared = {
        "learning_rate": optimizer.learning_rate,
        "schedule": schedule,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "ranks": ranks,
    }
    own = optimizer.model_dump(exclude=set(Updates.model_fields) - {"betas", "eps"})
    name = own.pop("name")
    if isinstance(engine, DeepSpeed):
        return _deepspeed(model, name, own, engine, shared)
    return TorchEngine(model, optimizer=partial(OPTIMIZERS[name], **own), **shared)


def _deepspeed(
    model: Any, name: str, own: Mapping[str, Any], engine: DeepSpeed, shared: Mapping[str, Any]
) -> TrainEngine:
    if name != "adamw":
        raise ConfigError(
            f"the engine 'deepspeed' has the optimizer 'adamw' alone, found '{name}' "
            "(it divides matrices, which Muon needs whole); choose engine: {name: torch}"
        )
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    zero = Zero(**engine.model_dump(exclude={"name"}))
    return DeepSpeedEngine(model, zero, **own, **shared)
