"""Fit a model to a fixed dataset, for several stages.

The order is: resume, step, average, evaluate, log, save, stop, export.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias, TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from stages.configs.training_config import DeepSpeedEngineConfig, TrainingConfig
from stages.contract import Context
from stages.training.best_checkpoint import BestCheckpoint
from stages.training.checkpointing import Checkpoints, Part
from stages.training.engines import make_engine
from stages.training.resumable_steps import StepDone, run_steps
from stages.training.shares import own_share
from training_core.data.batching import steps_in
from training_core.distributed import all_gather_object
from training_core.ema import WeightAverage
from training_core.engine.protocol import Objective, TrainEngine
from training_core.errors import ConfigError, DataError
from training_core.loop import train_steps
from training_core.models import hub
from training_core.models.parts import TrainedPart
from training_core.types import MicroBatch, StepReport

log = logging.getLogger(__name__)

M = TypeVar("M", bound=MicroBatch)
BatchOf: TypeAlias = Callable[[int], Sequence[M]]
"""Step (0-based) -> the micro-batches of its whole batch, the same on every rank."""
Evaluate = Callable[[], Mapping[str, float]]
"""Measures the trained model; called in eval mode and without gradients."""


def fit(
    model: nn.Module,
    objective: Objective[M],
    batch_of: BatchOf[M],
    *,
    num_examples: int,
    training: TrainingConfig,
    context: Context,
    evaluate: Evaluate | None = None,
    batches_use_model: bool = False,
) -> None:
    """Train `model` in place, from the newest checkpoint of this stage if there is one.

    At the end it has the weights that `training.export` selects, averaged if averaging is on.

    Args:
        model: already on its device.
        objective: the loss of one micro-batch.
        batch_of: returns the micro-batches of each step.
        num_examples: size of the dataset.
        training: number of steps, learning rate, and so on.
        context: has the folder of checkpoints, the sink of curves and this rank.
        evaluate: measures `model` every `training.eval_every_steps` and after the last step.
        batches_use_model: whether `batch_of` uses the current `model`, e.g. to sample from it.

    Raises:
        StoppedError: after SIGTERM; the state is saved first.
        DataError: if there is nothing to train on.
        ConfigError: if the config enables an evaluation that the stage does not have.
    """
    if num_examples == 0:
        raise DataError("there is no example to train on; give more data")
    if evaluate is None and (training.eval_every_steps or training.best_metric):
        raise ConfigError(
            "eval_every_steps and best_metric need an evaluation, and this stage has none; "
            "set eval_data, or remove them"
        )
    model.train()
    total = steps_in(num_examples, training.batch_size, training.epochs)
    if isinstance(training.engine, DeepSpeedEngineConfig):
        size = training.engine.tensor_parallel_size
        context = replace(context, dist_info=replace(context.dist_info, tensor_parallel_size=size))
    if evaluate and training.best_metric and not training.eval_every_steps:
        with eval_mode(model):  # finds a misspelled name now, not after the last step
            BestCheckpoint(training.best_metric).require(evaluate())
    engine = make_engine(model, training.optimizer, total, training.engine, context.dist_info)
    fitting = _Fitting(engine, training, context, evaluate)
    fitting.run(objective, fitting.with_model(batch_of) if batches_use_model else batch_of, total)
    engine.finish()
    fitting.export(total)
    model.eval()


def save_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase, context: Context) -> None:
    """Save the artifact: a whole model and its tokenizer, once for all ranks."""
    if context.dist_info.is_first:
        hub.save(model, tokenizer, context.artifact_dir)


class _Fitting:
    """What happens between two optimizer steps."""

    def __init__(
        self,
        engine: TrainEngine,
        training: TrainingConfig,
        context: Context,
        evaluate: Evaluate | None,
    ) -> None:
        self._engine, self._model = engine, engine.model
        self._trained = TrainedPart(self._model) if _is_partly_frozen(self._model) else self._model
        self._training, self._context, self._evaluate = training, context, evaluate
        self._best = BestCheckpoint(training.best_metric)
        with engine.gathered_weights() as model:
            decay = training.ema_decay
            self._average = None if decay is None else WeightAverage(model, decay)
        parts: dict[str, Part] = {"best": self._best}
        if self._average is not None:
            parts["average"] = self._average
        self._checkpoints = Checkpoints(
            context,
            models={"model": self._trained},
            engines={"engine": engine},
            parts=parts,
            keep=training.keep_checkpoints,
            keep_gib=training.keep_checkpoints_gib,
            protected=self._best.steps,
        )

    def with_model(self, batch_of: BatchOf[M]) -> BatchOf[M]:
        """Wrap `batch_of`: it sees the gathered model in evaluation mode."""

        def batch_of_whole(step: int) -> Sequence[M]:
            with self._engine.gathered_weights(), eval_mode(self._model):
                return batch_of(step)

        return batch_of_whole

    def run(self, objective: Objective[M], batch_of: BatchOf[M], total: int) -> None:
        """Run all remaining steps."""

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
        with self._engine.gathered_weights(), self._averaged(), eval_mode(self._model):
            measured = all_gather_object(dict(self._evaluate()), self._context.dist_info)[0]
        return measured, self._best.takes(report.step, measured)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        if self._average is None:
            yield
        else:
            with self._average.in_place_of(self._model):
                yield

    def export(self, total: int) -> None:
        """Write the weights of the artifact into the model."""
        step = self._best.step
        if self._training.export == "best" and step not in (None, total):
            state = self._checkpoints.load_step(step, "model")
            if self._average is not None:
                self._average.load_state_dict(state["parts"]["average"])
            log.info("the best checkpoint, of step %d, becomes the artifact", step)
        if self._average is not None:
            self._average.write_to(self._model)


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
