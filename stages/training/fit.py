"""Fit a model to a fixed dataset, for several stages.

The order is: resume, step, average, evaluate, log, save, stop, export.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from stages.training.best_checkpoint import BestCheckpoint
from stages.training.checkpointing import Checkpoints, Part
from stages.training.resumable_steps import StepDone, run_steps
from stages.training.shares import own_share
from stages.training.trained_model import TrainedModel
from training_core.distributed import all_gather_object
from training_core.ema import WeightAverage
from training_core.engine.protocol import Objective
from training_core.errors import ConfigError
from training_core.loop import train_steps
from training_core.models.parts import TrainedPart
from training_core.types import MicroBatch, StepReport

log = logging.getLogger(__name__)

M = TypeVar("M", bound=MicroBatch)
BatchOf: TypeAlias = Callable[[int], Sequence[M]]
"""Step (0-based) -> the micro-batches of its whole batch, the same on every rank."""
Evaluate = Callable[[], Mapping[str, float]]
"""Measures the trained model; called in eval mode and without gradients."""


def fit(
    trained: TrainedModel,
    objective: Objective[M],
    batch_of: BatchOf[M],
    *,
    evaluate: Evaluate | None = None,
    batches_use_model: bool = False,
) -> None:
    """Train a model in place, from the newest checkpoint of this stage if there is one.

    At the end it has the weights that `training.export` selects, averaged if averaging is on. It
    can compute with them, and be saved.

    Args:
        trained: the model with its engine, settings and context.
        objective: the loss of one micro-batch.
        batch_of: returns the micro-batches of each step.
        evaluate: measures the model every `training.eval_every_steps` and after the last step.
        batches_use_model: whether `batch_of` uses the current model, e.g. to sample from it.

    Raises:
        StoppedError: after SIGTERM; the state is saved first.
        ConfigError: if the config enables an evaluation that the stage does not have.
    """
    training = trained.training
    if evaluate is None and (training.eval_every_steps or training.best_metric):
        raise ConfigError(
            "eval_every_steps and best_metric need an evaluation, and this stage has none; "
            "set eval_data, or remove them"
        )
    if evaluate and training.best_metric and not training.eval_every_steps:
        with trained.at_work(), eval_mode(trained.model):
            # finds a misspelled name now, not after the last step
            BestCheckpoint(training.best_metric).require(evaluate())
    fitting = _Fitting(trained, evaluate)
    fitting.run(objective, fitting.with_model(batch_of) if batches_use_model else batch_of)
    fitting.export()


class _Fitting:
    """What happens between two optimizer steps."""

    def __init__(self, trained: TrainedModel, evaluate: Evaluate | None) -> None:
        self._trained, self._evaluate = trained, evaluate
        self._engine, self._model = trained.start(), trained.model
        self._training, self._context = trained.training, trained.context
        saved = TrainedPart(self._model) if _is_partly_frozen(self._model) else self._model
        training = trained.training
        self._best = BestCheckpoint(training.best_metric)
        self._average: WeightAverage | None = None
        if training.ema_decay is not None:
            with self._engine.gathered_weights() as model:
                self._average = WeightAverage(model, training.ema_decay)
        parts: dict[str, Part] = {"best": self._best}
        if self._average is not None:
            parts["average"] = self._average
        self._checkpoints = Checkpoints(
            self._context,
            models={"model": saved},
            engines={"engine": self._engine},
            parts=parts,
            keep=training.keep_checkpoints,
            keep_gib=training.keep_checkpoints_gib,
            protected=self._best.steps,
        )

    def with_model(self, batch_of: BatchOf[M]) -> BatchOf[M]:
        """Wrap `batch_of`: the model can compute, in evaluation mode."""

        def batch_of_model(step: int) -> Sequence[M]:
            with self._trained.at_work(), eval_mode(self._model):
                return batch_of(step)

        return batch_of_model

    def run(self, objective: Objective[M], batch_of: BatchOf[M]) -> None:
        """Run all remaining steps."""
        total = self._trained.total_steps

        def steps(first: int) -> Iterator[StepDone]:
            dist_info = self._context.dist_info
            whole = (batch_of(step) for step in range(first, total))
            batches = (own_share(batch, self._engine, dist_info) for batch in whole)
            for report in train_steps(
                self._engine, objective, batches, first_step=first, dist_info=dist_info
            ):
                measured, is_best = self._after(report, total)
                metrics = {**report.metrics, **_basics(report), **measured}
                yield StepDone(metrics, f"loss {report.loss:.4f}", must_save=is_best)

        every = self._training.save_every_steps
        run_steps(steps, total, self._checkpoints, self._context, save_every=every)

    def _after(self, report: StepReport, total: int) -> tuple[Mapping[str, float], bool]:
        """Average and evaluate, before this step is saved."""
        if self._average is not None:
            with self._engine.gathered_weights() as model:
                self._average.update(model)
        every = self._training.eval_every_steps
        if self._evaluate is None or (report.step < total and (not every or report.step % every)):
            return {}, False
        with self._at_work(), eval_mode(self._model):
            measured = all_gather_object(dict(self._evaluate()), self._context.dist_info)[0]
        return measured, self._best.takes(report.step, measured)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Let the model compute, with its averaged weights if there are any."""
        if self._average is None:
            with self._trained.at_work():
                yield
        else:
            with self._trained.whole() as model, self._average.in_place_of(model):
                yield

    def export(self) -> None:
        """End the training with the weights of the artifact."""
        step = self._selected_step()
        if self._average is None and self._trained.computes_together:
            if step is not None:
                self._checkpoints.resume_at(step)
            self._trained.finish(stays_divided=True)
            return
        self._trained.finish()
        if step is not None:
            state = self._checkpoints.load_step(step, "model")
            if self._average is not None:
                self._average.load_state_dict(state["parts"]["average"])
        if self._average is not None:
            self._average.write_to(self._model)

    def _selected_step(self) -> int | None:
        """Return the step whose checkpoint becomes the artifact; None for the newest weights."""
        step = self._best.step
        if self._training.export != "best" or step in (None, self._trained.total_steps):
            return None
        log.info("the best checkpoint, of step %d, becomes the artifact", step)
        return step


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate without an effect on training: no gradients, random state restored."""
    devices = list(range(torch.cuda.device_count()))
    was_training = model.training
    with torch.random.fork_rng(devices), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            model.train(was_training)


def _is_partly_frozen(model: nn.Module) -> bool:
    return not all(parameter.requires_grad for parameter in model.parameters())


def _basics(report: StepReport) -> dict[str, float]:
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens": report.tokens,
    }
