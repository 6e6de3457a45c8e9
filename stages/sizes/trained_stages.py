"""Estimates of stages that train on a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import DeepSpeedEngineConfig, EngineConfig
from stages.sizes.frozen_models import FrozenModels
from stages.sizes.stage_size import Roles, StageSize, Work, largest_phase, limit_of, steps_in
from training_core.sizes import flops
from training_core.sizes.decoder import Decoder, HeadKind
from training_core.sizes.model_use import ModelUse, Sharding
from training_core.sizes.training_memory import (
    WHOLE_WEIGHTS,
    MicroBatchSize,
    phases,
    resting,
)


@dataclass(frozen=True)
class Kind:
    """What a stage computes for an example.

    Attributes:
        role: the trained model.
        sequences: trained sequences of an example.
        compared: further sequences of which each step needs only log-probabilities.
        head: head of the trained model.
        has_reference: whether a frozen model computes log-probabilities before the first step.
        has_teacher: whether a frozen model computes logits in each step.
        is_masked: whether the attention of its batches may get a mask.
    """

    role: str = "policy"
    sequences: int = 1
    compared: int = 0
    head: HeadKind = "lm_head"
    has_reference: bool = False
    has_teacher: bool = False
    is_masked: bool = False


KINDS: Mapping[str, Kind] = {
    "sft": Kind(),
    "reward_model": Kind("reward_model", sequences=2, head="score", is_masked=True),
    "process_reward": Kind("process_reward_model", head="score"),
    "dpo": Kind(sequences=2, has_reference=True, is_masked=True),
    "kto": Kind(compared=1, has_reference=True),
    "distillation": Kind("student", has_teacher=True),
}
"""Name of a stage -> what it computes. DPO counts a reference, which two of its losses lack."""


def trained_stage(
    config: TrainedStageConfig, kind: Kind, decoder: Decoder, rows: int | None
) -> StageSize:
    """Estimate a stage.

    Args:
        config: of the stage.
        kind: what it computes for an example.
        decoder: shapes of the model, and of reference and teacher.
        rows: examples of the training data; None: unknown.
    """
    use, batch = use_of(config, kind, decoder), _micro_batch(config, kind)
    phase, roles = largest_phase(_phases(config, use, batch, kind))
    return StageSize(
        workers=config.resources.num_workers,
        num_gpus=config.resources.num_gpus,
        phase=phase,
        roles=roles,
        work=_work(config, kind, decoder, rows),
        limit_gib=limit_of(config.resources),
    )


def use_of(config: TrainedStageConfig, kind: Kind, decoder: Decoder) -> ModelUse:
    """Return how the stage holds its trained model."""
    return ModelUse(
        decoder,
        kind.head,
        config.model.load_options(seed=config.seed),
        config.training.optimizer.name,
        sharding_of(config.training.engine, config.resources.num_workers),
        is_on_gpu=config.resources.num_gpus > 0,
        has_average=config.training.ema_decay is not None,
    )


def sharding_of(engine: EngineConfig, workers: int) -> Sharding:
    """Return how an engine divides the state of a training."""
    if not isinstance(engine, DeepSpeedEngineConfig):
        return Sharding(workers)
    return Sharding(workers, **engine.model_dump(exclude={"name"}))


def _phases(
    config: TrainedStageConfig, use: ModelUse, batch: MicroBatchSize, kind: Kind
) -> Iterator[tuple[str, Roles]]:
    """Yield what each role holds; ZeRO 3 also divides reference and teacher."""
    frozen = replace(use, optimizer=None, options=replace(use.options, lora=None))
    divides = config.training.engine.divides_weights
    workers = config.resources.num_workers
    models = FrozenModels(
        {"frozen": frozen}, divided_by=workers if divides and workers > 1 else None
    )
    beside = models.at_work("frozen", tokens=batch.tokens)["frozen"]
    needs_whole = not divides or use.has_average or getattr(config, "on_policy_fraction", 0) > 0
    for name, parts in phases(use, batch):
        if name != WHOLE_WEIGHTS or needs_whole:
            yield name, {kind.role: parts, **({"teacher": beside} if kind.has_teacher else {})}
    if kind.has_reference and use.options.lora is None:
        waiting = resting(use if divides else frozen)
        yield "reference's log-probabilities", {kind.role: waiting, "reference": beside}


def _micro_batch(config: TrainedStageConfig, kind: Kind) -> MicroBatchSize:
    """Return the largest micro-batch: the budget, but at least one and at most all examples."""
    training = config.training
    example = kind.sequences * training.max_tokens
    workers = sharding_of(training.engine, config.resources.num_workers).data_parallel
    examples = math.ceil(training.batch_size / workers)
    tokens = max(example, min(training.micro_batch_tokens, examples * example))
    return MicroBatchSize(tokens, tokens, example if kind.is_masked else 0)


def _work(config: TrainedStageConfig, kind: Kind, decoder: Decoder, rows: int | None) -> Work:
    training, options = config.training, config.model
    sequence = flops.Sequence(training.max_tokens, training.max_tokens)
    forward = flops.forward(decoder, sequence)
    trained = flops.training(
        decoder,
        sequence,
        kind.head,
        has_adapter=options.lora is not None,
        is_checkpointed=options.gradient_checkpointing,
    )
    beside = (kind.compared + kind.has_teacher) * forward
    compared = kind.has_reference * (kind.sequences + kind.compared)
    sequences = training.batch_size * kind.sequences
    return Work(
        tokens_per_step=float(sequences * training.max_tokens),
        flops_per_step=sequences * trained + training.batch_size * beside,
        steps=steps_in(rows, training.batch_size, training.epochs),
        flops_once=(rows or 0) * compared * forward,
    )
