"""What to change in a config so that a stage needs less memory."""

from __future__ import annotations

from collections.abc import Iterator

from stages.configs.block import StageConfig
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import DeepSpeedEngineConfig

DIVIDES_PART = {"weights": 3, "gradients": 2, "optimizer": 1}
"""Part -> the lowest ZeRO stage that divides it over the workers."""


def remedies(config: StageConfig, part: str) -> str:
    """Return what makes a part of the memory smaller and is not done yet.

    Args:
        config: of a stage that does not fit.
        part: name of the part, as in `Parts`.
    """
    if isinstance(config, TrainedStageConfig):
        found = list(_of_training(config, part))
        return f"set {', or '.join(found)}" if found else "use a smaller model or larger GPUs"
    if part == "kv_cache":
        return "lower rollouts.gpu_memory_fraction"
    if part == "activations" and "micro_batch_tokens" in type(config).model_fields:
        return "lower micro_batch_tokens"
    if part == "weights" and (found := list(_of_all_models(config))):
        return f"set {', or '.join(found)}"
    return "this stage holds all its models on one GPU: use a smaller model or a larger GPU"


def _of_all_models(config: StageConfig) -> Iterator[str]:
    frozen = getattr(config, "frozen_models", None)
    if isinstance(frozen, FrozenModelsConfig) and not (frozen.shard and frozen.offload):
        yield "frozen_models: {shard: true, offload: true}"
    elif isinstance(config, PpoConfig) and not config.engine.divides_weights:
        yield "engine: {name: deepspeed, zero_stage: 3}"


def _of_training(config: TrainedStageConfig, part: str) -> Iterator[str]:
    model, training, engine = config.model, config.training, config.training.engine
    if part == "activations":
        if not model.gradient_checkpointing:
            yield "model.gradient_checkpointing: true"
        if training.micro_batch_tokens > training.max_tokens:
            yield "a smaller training.micro_batch_tokens"
    elif part in DIVIDES_PART:
        stage = engine.zero_stage if isinstance(engine, DeepSpeedEngineConfig) else 0
        if stage < DIVIDES_PART[part]:
            yield (
                f"training.engine: {{name: deepspeed, zero_stage: {DIVIDES_PART[part]}}} with "
                "several workers (resources.num_workers)"
            )
        else:
            yield "more workers (resources.num_workers)"
            if part == "weights" and not getattr(engine, "offload_parameters", False):
                yield "training.engine.offload_parameters: true"
            if part != "weights" and not getattr(engine, "offload_optimizer", False):
                yield "training.engine.offload_optimizer: true"
    if model.dtype == "float32":
        yield "model.dtype: bfloat16"
    if model.lora is None and not model.frozen and part != "activations":
        yield "model.lora: {}"
