"""Batches of which a share is sampled from the student as it is when the step begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stages.batches import Examples, cut, micro_batches
from stages.sampling import open_engine, sampling_of
from stages.settings.sampling import Rollouts
from stages.settings.training import Training
from training_core.data.batching import batch_indices
from training_core.types import Batch, Example, Prompt


def mixed_batches(
    student: Any,
    tokenizer: Any,
    examples: Examples,
    *,
    fraction: float,
    rollouts: Rollouts,
    training: Training,
    seed: int,
    directory: Path,
) -> Callable[[int], list[Batch]]:
    """Build step -> micro-batches: of the data, or of the student's own answers to its prompts.

    Whether a step is on-policy, and what is sampled in it, depends on seed, step and weights alone.

    Args:
        student: sampled from.
        tokenizer: its tokenizer.
        examples: the data.
        fraction: share of the steps that are on-policy.
        rollouts: how responses are sampled.
        training: how large a batch is.
        seed: of order and sampling.
        directory: of the student, for the rollout engine.
    """
    given = micro_batches(examples, training, seed=seed)
    if fraction == 0:
        return given
    engine = open_engine(rollouts, directory, student, tokenizer)

    def batch_of(step: int) -> list[Batch]:
        if not _is_on_policy(fraction, seed, step):
            return given(step)
        chosen = batch_indices(
            len(examples.examples), training.batch_size, training.epochs, seed=seed, step=step
        )
        engine.load_weights(student, step)
        sampled = engine.generate(
            [_prompt_of(examples.examples[i]) for i in chosen],
            sampling_of(rollouts),
            seeds=[(seed * 1_000_003 + step) * 100_003 + place for place in range(len(chosen))],
        )
        own = Examples([r.example() for r in sampled], examples.pad_id, examples.device)
        every = range(len(sampled))
        return [batch for _, batch in cut(own, every, training.micro_batch_tokens)]

    return batch_of


def _is_on_policy(fraction: float, seed: int, step: int) -> bool:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return float(torch.rand((), generator=generator)) < fraction


def _prompt_of(example: Example) -> Prompt:
    ids = example.input_ids[: example.loss_mask.index(1)]
    return Prompt(id="", messages=(), text="", input_ids=ids)
