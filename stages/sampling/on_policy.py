"""Batches that are partly sampled from the student, with its weights at the start of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from stages.batches.micro_batches import Examples, cut, micro_batches
from stages.configs.sampling_config import RolloutConfig
from stages.sampling.rollouts import (
    open_engine,
    placed_beside_ranks,
    sampling_of,
    verify_engine,
)
from stages.training.trained_model import TrainedModel
from training_core.data.batching import batch_indices
from training_core.data.chat import pad_id
from training_core.distributed import all_gather_object
from training_core.errors import DataError
from training_core.models.language_model import LanguageModel
from training_core.models.offloading import FrozenWeights
from training_core.rollout.engine import RolloutEngine, sync
from training_core.types import Batch, Example, Prompt


def mixed_batches(
    student: TrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    *,
    fraction: float,
    rollouts: RolloutConfig,
    seed: int,
    directory: Path,
) -> Callable[[int], list[Batch]]:
    """Build step -> micro-batches: from the data, or from the student's answers to its prompts.

    Whether a step is on-policy depends only on seed and step; its samples also depend on the
    weights. The prompt of a conversation is everything before its last answer.

    Args:
        student: model to sample from; an on-policy step gathers all its weights on every rank, and
            the first one samples for all.
        tokenizer: its tokenizer.
        examples: the data.
        fraction: share of the steps that are on-policy.
        rollouts: parameters of sampling.
        seed: seed of order and sampling.
        directory: directory of the student, for the rollout engine.

    Raises:
        DataError: if a prompt leaves no room for a response.
    """
    training, context = student.training, student.context
    dist_info = context.dist_info
    given = micro_batches(examples, training, seed=seed, dist_info=dist_info)
    if fraction == 0:
        return given
    prompts = [_prompt_of(example) for example in examples.examples]
    _require_room(prompts, rollouts)
    sample = None
    with student.whole() as policy:
        if dist_info.is_first:
            placed = placed_beside_ranks(rollouts, dist_info)
            engine = open_engine(placed, directory, policy, tokenizer, context.cluster)
            sample = _sampler(policy, tokenizer, rollouts, engine)

    def batch_of(step: int) -> list[Batch]:
        if not _is_on_policy(fraction, seed, step):
            return given(step)
        chosen = batch_indices(
            len(prompts), training.batch_size, training.epochs, seed=seed, step=step
        )
        seeds = [(seed * 1_000_003 + step) * 100_003 + place for place in range(len(chosen))]
        with student.whole():
            sampled = sample([prompts[i] for i in chosen], seeds, step) if sample else []
        own = Examples(all_gather_object(sampled, dist_info)[0], examples.pad_id, examples.device)
        parts = cut(own, range(len(chosen)), training.micro_batch_tokens, dist_info)
        return [batch for _, batch in parts]

    return batch_of


def _sampler(
    student: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    rollouts: RolloutConfig,
    engine: RolloutEngine,
) -> Callable[[Sequence[Prompt], Sequence[int], int], list[Example]]:
    """Return a function that samples; its first call verifies how the engine uses the weights."""
    is_proven = False

    def sample(prompts: Sequence[Prompt], seeds: Sequence[int], step: int) -> list[Example]:
        nonlocal is_proven
        sync(engine, student, step)
        sampled = engine.generate(prompts, sampling_of(rollouts), seeds=seeds)
        if not is_proven:
            weights = FrozenWeights(student, student.device)
            verify_engine(engine, weights, sampled, rollouts, pad_id(tokenizer))
            is_proven = True
        return [rollout.example() for rollout in sampled]

    return sample


def _require_room(prompts: Sequence[Prompt], rollouts: RolloutConfig) -> None:
    room = rollouts.max_tokens - rollouts.max_response_tokens
    longest = max((len(prompt.input_ids) for prompt in prompts), default=0)
    if longest > room:
        raise DataError(
            f"a prompt of the data has {longest} tokens, and rollouts.max_tokens - "
            f"rollouts.max_response_tokens leaves {room}; raise rollouts.max_tokens, or lower "
            "training.max_tokens so that long examples are dropped"
        )


def _is_on_policy(fraction: float, seed: int, step: int) -> bool:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return float(torch.rand((), generator=generator)) < fraction


def _prompt_of(example: Example) -> Prompt:
    """Return everything before the last answer."""
    end = len(example) - example.loss_mask[::-1].index(1)
    answer = example.loss_mask[:end][::-1]
    start = end - (answer.index(0) if 0 in answer else end)
    return Prompt(id="", messages=(), text="", input_ids=example.input_ids[:start])
