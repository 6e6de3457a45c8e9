"""The miniature of a preset: the same steps, losses, engines and roles, with tiny sizes on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel

from flows.config.given_models import GivenModelConfig, RegisteredModelConfig
from flows.config.lifecycle_config import IterativeDpoConfig, LifecycleConfig, RaftConfig
from stages.catalog import stage_of
from stages.configs.block import LoggingConfig, ResourcesConfig, StageConfig
from stages.configs.data_config import CafeDataConfig, DataConfig, MixedDataConfig
from stages.configs.model_config import (
    BaseModelConfig,
    ExternalModelConfig,
    ModelConfig,
    ScratchModelConfig,
)
from stages.configs.placement_config import ApartConfig, ApartScoringConfig, ColocatedConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_evaluation_config import HeldOutPromptsConfig, PpoEvaluationConfig
from stages.configs.ppo_options import OverlongConfig
from stages.configs.reward_config import ExternalRewardModelRewardConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sampling_config import GroupSamplingConfig, RolloutConfig
from stages.configs.sft_config import SftConfig
from stages.configs.stage_record import RowsName
from stages.configs.trained_stage import TrainedStageConfig
from stages.configs.training_config import TrainingConfig
from stages.configs.tree import rewritten
from stages.datasets.configured import SingleSource, rows_name

ROWS = 32
"""Rows that are read of each source."""
BATCH = 8
TOKENS = 512
"""Limit of a sequence: the random models have no more positions."""
RESPONSE_TOKENS = 16


class Substitutes(Protocol):
    """Provides tiny models and rows; see `flows.preflight.stand_ins`."""

    def base_model(self, model: BaseModelConfig) -> BaseModelConfig:
        """Return a tiny random model of the same architecture."""
        ...

    def policy(self, model: ExternalModelConfig) -> ExternalModelConfig:
        """Return a tiny random policy of the same architecture."""
        ...

    def reward_model(self, model: ExternalModelConfig) -> ExternalModelConfig:
        """Return a tiny random reward model of the same architecture."""
        ...

    def rows(self, source: SingleSource, kind: RowsName) -> SingleSource:
        """Return a source of at most `ROWS` rows with the same columns."""
        ...


def miniature(
    config: LifecycleConfig, stand_ins: Substitutes, *, max_workers: int | None = None
) -> LifecycleConfig:
    """Return the config with tiny sizes everywhere, validated anew.

    What decides which code runs stays: steps, losses, optimizers, dtypes, engines, the number of
    workers (up to `max_workers`), and what is exported.
    """

    def change(block: BaseModel) -> BaseModel:
        updates: dict[str, object] = {}
        for kind, shrink in SHRINK:
            if isinstance(block, kind):
                updates |= shrink(block)
        if isinstance(block, ResourcesConfig) and max_workers:
            updates["num_workers"] = min(block.num_workers, max_workers)
        if isinstance(block, StageConfig):
            updates |= _few_rows(block, stand_ins)
        if isinstance(block, HeldOutPromptsConfig):
            updates["data"] = _small_data(block.data, "prompts", stand_ins)
        if isinstance(block, PpoEvaluationConfig) and block.exclude is not None:
            updates["exclude"] = _small_data(block.exclude, "prompts", stand_ins)
        if isinstance(block, SftConfig) and block.base is not None:
            updates |= _small_base(block, stand_ins)
        if isinstance(block, ExternalRewardModelRewardConfig):
            updates["model"] = stand_ins.reward_model(block.model)
        if isinstance(block, LifecycleConfig):
            updates["given"] = _small_given(block, stand_ins)
        return block.model_copy(update=updates)

    small = rewritten(rewritten(config, change), _with_a_row_for_each_worker)
    return LifecycleConfig.model_validate(small.model_dump())


def _short_training(training: TrainingConfig) -> Mapping[str, object]:
    return {
        "epochs": min(training.epochs, 1.0),
        "batch_size": min(training.batch_size, BATCH),
        "max_tokens": min(training.max_tokens, TOKENS),
        "unknown_limit": 1.0,  # a stand-in's tokenizer may know few words
        "eval_every_steps": min(training.eval_every_steps, 2)
        if training.eval_every_steps
        else None,
        "save_every_steps": 2,
    }


def _with_a_row_for_each_worker(block: BaseModel) -> BaseModel:
    if not isinstance(block, TrainedStageConfig):
        return block
    size = max(block.training.batch_size, block.resources.num_workers)
    training = block.training.model_copy(update={"batch_size": size})
    return block.model_copy(update={"training": training})


def _short_rollouts(rollouts: RolloutConfig) -> Mapping[str, object]:
    return {
        "max_response_tokens": min(rollouts.max_response_tokens, RESPONSE_TOKENS),
        "max_tokens": min(rollouts.max_tokens, TOKENS),
        "unknown_limit": 1.0,
    }


def _often(evaluation: PpoEvaluationConfig) -> Mapping[str, object]:
    return {"every": 1, "samples_per_prompt": max((1, *evaluation.pass_at))}


def _few_rounds(ppo: PpoConfig) -> Mapping[str, object]:
    return {
        "steps": min(ppo.steps, 2),
        "prompts_per_step": min(ppo.prompts_per_step, max(BATCH, ppo.resources.num_workers)),
        "updates_per_step": min(ppo.updates_per_step, 2),
        "critic_warmup_steps": min(ppo.critic_warmup_steps, 1),
        "save_every_steps": 1,
    }


ONE_CPU = {"num_cpus": 1, "num_gpus": 0}

SHRINK: Sequence[tuple[type[BaseModel], Callable[[Any], Mapping[str, object]]]] = (
    (ResourcesConfig, lambda _: {"num_cpus": 1, "num_gpus": 0, "memory_gib": None}),
    (LoggingConfig, lambda _: {"wandb": None}),
    (ModelConfig, lambda _: {"attention": "auto"}),  # FlashAttention needs a GPU
    (TrainingConfig, _short_training),
    (RolloutConfig, _short_rollouts),
    (ColocatedConfig, lambda _: {"engines": 1}),
    (ApartConfig, lambda _: ONE_CPU | {"engines": 1, "tensor_parallel_size": 1}),
    (ApartScoringConfig, lambda _: ONE_CPU | {"scorers": 1}),
    (RewardModelConfig, lambda c: {"heldout_fraction": max(c.heldout_fraction, 0.25)}),
    (GroupSamplingConfig, lambda _: {"keep_unfinished": True}),  # random models end by chance
    (PpoConfig, _few_rounds),
    (PpoEvaluationConfig, _often),
    (OverlongConfig, lambda c: {"buffer_tokens": min(c.buffer_tokens, RESPONSE_TOKENS)}),
    (IterativeDpoConfig, lambda c: {"rounds": min(c.rounds, 2)}),
    (RaftConfig, lambda c: {"rounds": min(c.rounds, 2)}),
)
"""Class of a block -> the fields that change in a block of this class or of one below it."""


def _few_rows(stage: StageConfig, stand_ins: Substitutes) -> dict[str, object]:
    return {
        field: _small_data(data, rows_name(use, stage), stand_ins)
        for field, use in stage_of(stage).reads.items()
        if "." not in field and (data := getattr(stage, field)) is not None
    }


def _small_data(data: DataConfig, kind: RowsName, stand_ins: Substitutes) -> DataConfig:
    if isinstance(data, CafeDataConfig):
        return data.model_copy(update={"size": min(data.size, ROWS)})
    if not isinstance(data, MixedDataConfig):
        return stand_ins.rows(data, kind)
    parts = tuple(
        part.model_copy(update={"data": _small_data(part.data, kind, stand_ins)})
        for part in data.parts
    )
    return data.model_copy(update={"parts": parts, "size": min(data.size or ROWS, ROWS)})


def _small_base(sft: SftConfig, stand_ins: Substitutes) -> dict[str, object]:
    """Replace the base model; a word tokenizer knows neither the template nor the padding token."""
    if isinstance(sft.base, ScratchModelConfig) or sft.base is None:
        return {}
    updates: dict[str, object] = {"base": stand_ins.base_model(sft.base)}
    if isinstance(updates["base"], ScratchModelConfig):
        updates |= {"chat_template": "roles", "pad_token": None}
    return updates


def _small_given(config: LifecycleConfig, stand_ins: Substitutes) -> dict[str, GivenModelConfig]:
    """Replace the given models, except those of the registry."""
    small: dict[str, GivenModelConfig] = {}
    for name, given in config.given.items():
        if isinstance(given.model, RegisteredModelConfig):
            small[name] = given
            continue
        is_policy = given.kind_as(name) == "policy"
        replace = stand_ins.policy if is_policy else stand_ins.reward_model
        template = "roles" if is_policy else None
        small[name] = given.model_copy(
            update={"model": replace(given.model), "chat_template": template, "pad_token": None}
        )
    return small
