"""The body of the stages that fit a model to a fixed dataset: resume, loop, log, save, stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stages.contract import Context
from stages.settings.training import Optimizer, Training
from training_core import checkpoint
from training_core.data.batching import steps_in
from training_core.engine.protocol import TrainEngine
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import DataError, IntegrityError, StoppedError
from training_core.loop import Objective, train_steps
from training_core.schedules import learning_rate_factor

log = logging.getLogger(__name__)

BatchOf = Callable[[int], Sequence[Any]]
"""Step (0-based) -> the micro-batches of its batch."""


def best_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_engine(model: Any, optimizer: Optimizer, total_steps: int) -> TorchEngine:
    """Build the engine that `optimizer` describes."""
    schedule = learning_rate_factor(
        optimizer.schedule,
        warmup_steps=max(1, round(optimizer.warmup_fraction * total_steps)),
        total_steps=total_steps,
    )
    return TorchEngine(
        model,
        learning_rate=optimizer.learning_rate,
        schedule=schedule,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
    )


def fit(
    model: Any,
    objective: Objective,
    batch_of: BatchOf,
    *,
    num_examples: int,
    training: Training,
    context: Context,
) -> None:
    """Train `model` in place, from the newest checkpoint of this stage if there is one.

    Args:
        model: already on its device.
        objective: the loss of one micro-batch.
        batch_of: gives the micro-batches of each step.
        num_examples: size of the dataset.
        training: how long and how fast.
        context: where checkpoints and curves go.

    Raises:
        StoppedError: after SIGTERM, once the state is saved.
        DataError: if there is nothing to train on.
    """
    if num_examples == 0:
        raise DataError(
            "no example is left to train on: each is longer than "
            f"max_tokens={training.max_tokens}; raise it"
        )
    total = steps_in(num_examples, training.batch_size, training.epochs)
    engine = make_engine(model, training.optimizer, total)
    first = resume(context, {"model": model}, {"engine": engine})
    save = saver(context, {"model": model}, {"engine": engine}, keep=training.keep_checkpoints)
    batches = (batch_of(step) for step in range(first, total))
    model.train()
    for report in train_steps(engine, objective, batches, first_step=first):
        context.sink.log(report.step, {**report.metrics, **_basics(report)})
        context.sink.progress(report.step, total, f"loss {report.loss:.4f}")
        if context.should_stop():
            save(report.step)
            raise StoppedError(f"stopped at step {report.step} of {total}; its checkpoint is saved")
        if report.step % training.save_every_steps == 0 and report.step < total:
            save(report.step)
    model.eval()


def _basics(report: Any) -> dict[str, float]:
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens": report.tokens,
    }


def resume(context: Context, models: Mapping[str, Any], engines: Mapping[str, TrainEngine]) -> int:
    """Load the newest checkpoint of this or an earlier attempt that is sound, and its curves.

    Returns:
        Steps already done; 0 if there is no sound checkpoint.
    """
    for candidate in checkpoint.complete_checkpoints(context.checkpoint_roots):
        try:
            state = checkpoint.load(candidate, models)
        except IntegrityError as error:
            log.warning("not resumed from a damaged checkpoint: %s", error)
            continue
        for name, engine in engines.items():
            engine.load_state_dict(state["engines"][name])
        torch.set_rng_state(state["rng"])
        context.sink.rewind(candidate.directory.parent.parent / "metrics.jsonl", candidate.step)
        log.info("resumed at step %d from %s", candidate.step, candidate.directory)
        return candidate.step
    context.sink.rewind(context.attempt_dir / "metrics.jsonl", 0)
    return 0


def saver(
    context: Context, models: Mapping[str, Any], engines: Mapping[str, TrainEngine], *, keep: int
) -> Callable[[int], None]:
    """Build the function that checkpoints `models` and `engines` after a step."""

    def save(step: int) -> None:
        state = {
            "engines": {name: engine.state_dict() for name, engine in engines.items()},
            "rng": torch.get_rng_state(),
        }
        checkpoint.save(context.checkpoint_roots[0], step, models, state, keep=keep)

    return save
