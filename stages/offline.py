"""The body of the stages that fit a model to a fixed dataset.

Resume, step, average, evaluate, log, save, stop, export.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from stages.best import Best
from stages.contract import Context
from stages.settings.training import DeepSpeed, Engine, Training, Updates
from training_core import checkpoint
from training_core.data.batching import share_of_rank, steps_in
from training_core.distributed import any_rank, gather
from training_core.ema import WeightAverage
from training_core.engine.optimizers import OPTIMIZERS
from training_core.engine.protocol import Objective, TrainEngine
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError, DataError, IntegrityError, StoppedError
from training_core.loop import train_steps
from training_core.ranks import ALONE, Ranks
from training_core.schedules import learning_rate_factor
from training_core.types import StepReport

log = logging.getLogger(__name__)

BatchOf = Callable[[int], Sequence[Any]]
"""Step (0-based) -> the micro-batches of its whole batch, the same on every rank."""
Evaluate = Callable[[], Mapping[str, float]]
"""Measures the model that is fitted; called in eval mode and without gradients."""


class Part(Protocol):
    """Something whose state goes into checkpoints besides models and engines."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


def best_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_engine(
    model: Any,
    optimizer: Updates,
    total_steps: int,
    engine: Engine | None = None,
    ranks: Ranks = ALONE,
) -> TrainEngine:
    """Build the engine that `optimizer` and `engine` describe.

    Args:
        model: on its device.
        optimizer: a row of the optimizers' union.
        total_steps: where the schedule ends.
        engine: plain torch if None.
        ranks: this process.

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
        "ranks": ranks,
    }
    own = optimizer.model_dump(exclude=set(Updates.model_fields) - {"betas", "eps"})
    name = own.pop("name")
    if isinstance(engine, DeepSpeed):
        return _deepspeed(model, name, own, engine, shared)
    return TorchEngine(model, optimizer=partial(OPTIMIZERS[name], **own), **shared)


def _deepspeed(
    model: Any, name: str, own: Mapping[str, Any], engine: DeepSpeed, shared: Mapping[str, Any]
) -> TrainEngine:
    if name != "adamw":
        raise ConfigError(
            f"the engine 'deepspeed' has the optimizer 'adamw' alone, found '{name}' "
            "(it divides matrices, which Muon needs whole); choose engine: {name: torch}"
        )
    from training_core.engine.deepspeed_engine import DeepSpeedEngine, Zero

    zero = Zero(**engine.model_dump(exclude={"name"}))
    return DeepSpeedEngine(model, zero, **own, **shared)


def fit(
    model: Any,
    objective: Objective,
    batch_of: BatchOf,
    *,
    num_examples: int,
    training: Training,
    context: Context,
    evaluate: Evaluate | None = None,
) -> None:
    """Train `model` in place, from the newest checkpoint of this stage if there is one.

    At the end it has the weights that `training.export` asks for, averaged if there is an average.

    Args:
        model: already on its device.
        objective: the loss of one micro-batch.
        batch_of: gives the micro-batches of each step.
        num_examples: size of the dataset.
        training: how long and how fast.
        context: where checkpoints and curves go, and the ranks that train together.
        evaluate: measures `model` every `training.eval_every_steps` and after the last step.

    Raises:
        StoppedError: after SIGTERM, once the state is saved.
        DataError: if there is nothing to train on.
        ConfigError: if an evaluation is asked for and the stage has none.
    """
    if num_examples == 0:
        raise DataError(
            "no example is left to train on: each is longer than "
            f"max_tokens={training.max_tokens}; raise it"
        )
    if evaluate is None and (training.eval_every_steps or training.best_metric):
        raise ConfigError(
            "eval_every_steps and best_metric need an evaluation, and this stage has none; "
            "set eval_data, or leave them out"
        )
    model.train()
    total = steps_in(num_examples, training.batch_size, training.epochs)
    if isinstance(training.engine, DeepSpeed):
        size = training.engine.tensor_parallel_size
        context = replace(context, ranks=replace(context.ranks, tensor_parallel_size=size))
    engine = make_engine(model, training.optimizer, total, training.engine, context.ranks)
    fitting = _Fitting(engine, training, context, evaluate)
    fitting.run(objective, batch_of, total)
    engine.finish()
    fitting.export(total)
    model.eval()


class _Fitting:
    """What happens between two optimizer steps."""

    def __init__(
        self, engine: TrainEngine, training: Training, context: Context, evaluate: Evaluate | None
    ) -> None:
        self._engine, self._model = engine, engine.model
        self._training, self._context, self._evaluate = training, context, evaluate
        self._best = Best(training.best_metric)
        with engine.whole_model() as model:
            decay = training.ema_decay
            self._average = None if decay is None else WeightAverage(model, decay)
        self._parts: dict[str, Part] = {"best": self._best}
        if self._average is not None:
            self._parts["average"] = self._average

    def run(self, objective: Objective, batch_of: BatchOf, total: int) -> None:
        """Make all steps that are not made yet."""
        context, every = self._context, self._training.save_every_steps
        models, engines = {"model": self._model}, {"engine": self._engine}
        first = resume(context, models, engines, self._parts)
        save = saver(
            context,
            models,
            engines,
            keep=self._training.keep_checkpoints,
            keep_gib=self._training.keep_checkpoints_gib,
            parts=self._parts,
            protected=self._best.steps,
        )
        batches = (self._share(batch_of(step)) for step in range(first, total))
        for report in train_steps(
            self._engine, objective, batches, first_step=first, ranks=context.ranks
        ):
            measured, is_best = self._after(report, total)
            context.sink.log(report.step, {**report.metrics, **_basics(report), **measured})
            context.sink.progress(report.step, total, f"loss {report.loss:.4f}")
            must_stop = any_rank(context.should_stop(), context.ranks)
            is_due = is_best or report.step % every == 0
            if must_stop or (is_due and report.step < total):
                save(report.step)
            if must_stop:
                raise StoppedError(
                    f"stopped at step {report.step} of {total}; its checkpoint is saved"
                )

    def _after(self, report: StepReport, total: int) -> tuple[Mapping[str, float], bool]:
        """Average and evaluate, before anything of this step is saved."""
        if self._average is not None:
            with self._engine.whole_model() as model:
                self._average.update(model)
        every = self._training.eval_every_steps
        if self._evaluate is None or (report.step < total and (not every or report.step % every)):
            return {}, False
        with self._engine.whole_model(), self._averaged(), undisturbed(self._model):
            measured = gather(dict(self._evaluate()), self._context.ranks)[0]
        return measured, self._best.takes(report.step, measured)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        if self._average is None:
            yield
        else:
            with self._average.in_place_of(self._model):
                yield

    def _share(self, micro_batches: Sequence[Any]) -> Sequence[Any]:
        ranks = self._context.ranks
        if ranks.is_alone:
            return micro_batches
        return share_of_rank(
            micro_batches,
            [padded_tokens(m) for m in micro_batches],
            ranks.data_rank,
            ranks.data_world_size,
            even=self._engine.needs_even_ranks,
        )

    def export(self, total: int) -> None:
        """Leave the weights in the model that become the artifact."""
        step = self._best.step
        if self._training.export == "best" and step not in (None, total):
            self._load(step)
        if self._average is not None:
            self._average.write_to(self._model)

    def _load(self, step: int) -> None:
        found = checkpoint.complete_checkpoints(self._context.checkpoint_roots)
        for candidate in (c for c in found if c.step == step):
            state = checkpoint.load(candidate, {"model": self._model})
            if self._average is not None:
                self._average.load_state_dict(state["parts"]["average"])
            log.info("the best checkpoint, of step %d, becomes the artifact", step)
            return
        raise IntegrityError(
            f"the best checkpoint is of step {step}, and it is gone from "
            f"{', '.join(map(str, self._context.checkpoint_roots))}; start the stage over"
        )


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Evaluate so that training goes on as if nobody had: no gradients, no random number drawn."""
    devices = list(range(torch.cuda.device_count()))
    was_training = model.training
    with torch.random.fork_rng(devices), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            model.train(was_training)


def padded_tokens(micro_batch: Any) -> int:
    """What a micro-batch costs: the size of its `batch.input_ids`, or of its own `input_ids`."""
    batch = micro_batch.batch if hasattr(micro_batch, "batch") else micro_batch
    return int(batch.input_ids.numel())


def _basics(report: StepReport) -> dict[str, float]:
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens": report.tokens,
    }


def resume(
    context: Context,
    models: Mapping[str, Any],
    engines: Mapping[str, TrainEngine],
    parts: Mapping[str, Part] | None = None,
) -> int:
    """Load the newest checkpoint of this or an earlier attempt that is sound, and its curves.

    Args:
        context: where checkpoints are.
        models: by name.
        engines: by name.
        parts: what else has a state, by name.

    Returns:
        Steps already done; 0 if there is no sound checkpoint.
    """
    for candidate in checkpoint.complete_checkpoints(context.checkpoint_roots):
        try:
            with _whole(list(engines.values())):
                state = checkpoint.load(candidate, models)
        except IntegrityError as error:
            log.warning("not resumed from a damaged checkpoint: %s", error)
            continue
        for name, engine in engines.items():
            engine.load_state_dict(state["engines"][name])
            shards = candidate.directory / checkpoint.SHARDS / name
            engine.load_shards(shards, context.attempt_dir / "universal")
        for name, part in (parts or {}).items():
            part.load_state_dict(state["parts"][name])
        _set_random_state(state["random"][context.ranks.rank % len(state["random"])])
        context.sink.rewind(candidate.directory.parent.parent / "metrics.jsonl", candidate.step)
        log.info("resumed at step %d from %s", candidate.step, candidate.directory)
        return candidate.step
    context.sink.rewind(context.attempt_dir / "metrics.jsonl", 0)
    return 0


def saver(
    context: Context,
    models: Mapping[str, Any],
    engines: Mapping[str, TrainEngine],
    *,
    keep: int,
    keep_gib: float | None = None,
    parts: Mapping[str, Part] | None = None,
    protected: Callable[[], Sequence[int]] = tuple,
) -> Callable[[int], None]:
    """Build the function that checkpoints `models`, `engines` and `parts` after a step.

    Args:
        context: where checkpoints go.
        models: by name.
        engines: by name; each makes its own model whole.
        keep: newest checkpoints that stay.
        keep_gib: size in GiB beyond which old ones go.
        parts: what else has a state, by name.
        protected: gives the steps whose checkpoints stay.
    """

    def save_shards(directory: Path) -> None:
        for name, engine in engines.items():
            engine.save_shards(directory / name)

    def save(step: int) -> None:
        with _whole(list(engines.values())):
            state = {
                "engines": {name: engine.state_dict() for name, engine in engines.items()},
                "parts": {name: part.state_dict() for name, part in (parts or {}).items()},
                "random": gather(_random_state(), context.ranks),
            }
            checkpoint.save(
                context.checkpoint_roots[0],
                step,
                models,
                state,
                keep=keep,
                keep_gib=keep_gib,
                protected=protected(),
                shards=save_shards,
                ranks=context.ranks,
            )

    return save


@contextmanager
def _whole(engines: Sequence[TrainEngine]) -> Iterator[None]:
    if not engines:
        yield
        return
    with engines[0].whole_model(), _whole(engines[1:]):
        yield


def _random_state() -> dict[str, Any]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpu}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
