"""Compare the models and lengths of all steps with the base model, without its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.model_config import ModelConfig, ScratchModelConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.sft_config import SftConfig
from stages.configs.trained_stage import TrainedStageConfig
from stages.training.base_model import base_config
from training_core.models.fitting_parts import max_positions
from training_core.models.without_weights import problem_with


def problems_of_models(
    sft: SftConfig, stages: Mapping[str, StageConfig]
) -> Iterator[tuple[str, str]]:
    """Yield (dotted field, problem) of all steps of a lifecycle.

    All steps train or use models of the base's architecture.

    Args:
        sft: has the base.
        stages: config of each step, `sft` included.

    Raises:
        DataError: if the base cannot be read.
    """
    if sft.base is None:
        return
    config, is_scratch = base_config(sft, sft.base), isinstance(sft.base, ScratchModelConfig)
    for step, stage in stages.items():
        for field, model in _trained_models(stage):
            options = model.load_options(seed=stage.seed)
            if problem := problem_with(options, config, stage_of(stage).makes):
                yield f"{step}.{field}", problem
        yield from _too_long(step, stage, config, is_scratch=is_scratch)


def _trained_models(stage: StageConfig) -> Iterator[tuple[str, ModelConfig]]:
    """Yield the field with the options of the trained model, and the options."""
    if isinstance(stage, TrainedStageConfig):
        yield "model", stage.model
    if isinstance(stage, PpoConfig):
        yield "model", stage.model


def _too_long(step: str, stage: Any, config: Any, *, is_scratch: bool) -> Iterator[tuple[str, str]]:
    positions = max_positions(config)
    remedy = "lower it, or raise sft.training.max_tokens" if is_scratch else "lower it"
    for field in ("training", "rollouts"):
        block = getattr(stage, field, None)
        if positions is not None and block is not None and block.max_tokens > positions:
            yield (
                f"{step}.{field}.max_tokens",
                f"{block.max_tokens} is more than the {positions} positions of the base model; "
                f"{remedy}",
            )
