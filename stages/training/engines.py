"""The device and the engine of a training stage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from stages.configs.training_config import BaseOptimizerConfig, DeepSpeedEngineConfig, EngineConfig
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.engine.optimizers import OPTIMIZERS
from training_core.engine.protocol import TrainEngine
from training_core.engine.torch_engine import TorchEngine
from training_core.engine.zero import Zero
from training_core.errors import ConfigError
from training_core.models.language_model import LanguageModel
from training_core.models.parts import head_weights, store_head_like_body
from training_core.schedules import learning_rate_factor


def best_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_device(model: LanguageModel, engine: EngineConfig) -> LanguageModel:
    """Move a model to the device, unless its engine moves it there part by part (ZeRO 3)."""
    return model if engine.divides_weights else model.to(best_device())


def make_engine(
    model: nn.Module,
    optimizer: BaseOptimizerConfig,
    total_steps: int,
    engine: EngineConfig | None = None,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> TrainEngine:
    """Build the engine that `optimizer` and `engine` describe.

    Args:
        model: as `on_device` returns it.
        optimizer: one member of the union of optimizer configs.
        total_steps: step at which the schedule ends.
        engine: plain torch if None.
        dist_info: this process.

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
        "dist_info": dist_info,
    }
    own = optimizer.model_dump(exclude=set(BaseOptimizerConfig.model_fields) - {"betas", "eps"})
    name = own.pop("name")
    if isinstance(engine, DeepSpeedEngineConfig):
        return _deepspeed(model, name, own, engine, shared)
    return TorchEngine(model, optimizer=partial(OPTIMIZERS[name], **own), **shared)


def _deepspeed(
    model: nn.Module,
    name: str,
    own: Mapping[str, Any],
    engine: DeepSpeedEngineConfig,
    shared: Mapping[str, Any],
) -> TrainEngine:
    if name != "adamw":
        raise ConfigError(
            f"the engine 'deepspeed' supports only the optimizer 'adamw', found '{name}' "
            "(it divides matrices, which Muon needs whole); choose engine: {name: torch}"
        )
    # Imported here, because importing deepspeed takes seconds and it exists only on Linux.
    from training_core.engine.deepspeed_engine import DeepSpeedEngine  # noqa: PLC0415

    zero = Zero(**engine.model_dump(exclude={"name"}))
    if engine.divides_weights:
        store_head_like_body(model)
    return DeepSpeedEngine(model, zero, used_outside=head_weights, **own, **shared)
