"""The model of a training stage, which computes before, between and after the optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from stages.configs.training_config import DeepSpeedEngineConfig, TrainingConfig
from stages.contract import Context
from stages.training.engines import best_device, make_engine, on_device
from training_core.data.batching import steps_in
from training_core.engine.protocol import TrainEngine
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.language_model import LanguageModel

A = TypeVar("A")
T = TypeVar("T")


class TrainedModel:
    """A model and the engine that trains it; see `ComputingModel`.

    Under ZeRO 3 the engine divides the weights at once, and no process has all of them until they
    are saved: `compute` gathers one layer after the other. Every other engine starts when the
    training does, so that a reference can compute beside a model without optimizer state.

    Args:
        model: as it was loaded.
        num_examples: size of the dataset.
        training: engine, optimizer and number of epochs.
        context: has the folder of the artifact and this rank.

    Attributes:
        model: the plain model; its weights are at hand inside of `whole`.
        total_steps: number of optimizer steps.
        device: where it computes.
        training: as given.
        context: with the ranks as the engine groups them.

    Raises:
        DataError: if there is nothing to train on.
        ConfigError: if ZeRO 3 cannot train this model.
    """

    def __init__(
        self,
        model: LanguageModel,
        num_examples: int,
        training: TrainingConfig,
        context: Context,
    ) -> None:
        if num_examples == 0:
            raise DataError("there is no example to train on; give more data")
        if isinstance(training.engine, DeepSpeedEngineConfig):
            size = training.engine.tensor_parallel_size
            ranks = replace(context.dist_info, tensor_parallel_size=size)
            context = replace(context, dist_info=ranks)
        self.model = on_device(model, training.engine)
        self.training, self.context, self.device = training, context, best_device()
        self.total_steps = steps_in(num_examples, training.batch_size, training.epochs)
        self._engine: TrainEngine | None = None
        self._is_whole = True
        if training.engine.divides_weights:
            self.start()
            model.eval()

    def start(self) -> TrainEngine:
        """Begin the training: return the engine that has the model from now on."""
        self.model.train()  # so is the copy that DeepSpeed trains
        if self._engine is None:
            settings, ranks = self.training, self.context.dist_info
            self._engine = make_engine(
                self.model, settings.optimizer, self.total_steps, settings.engine, ranks
            )
            self._is_whole = False
        return self._engine

    @property
    def computes_together(self) -> bool:
        """Return whether every rank must call `compute` equally often."""
        return not self._is_whole and self.training.engine.divides_weights

    def compute(self, function: Callable[[Any, A], T], argument: A) -> T:
        """Return `function(model, argument)` without gradients; inside of `at_work`."""
        if self._engine is not None and not self._is_whole:
            return self._engine.compute(function, argument)
        with torch.no_grad():
            return function(self.model, argument)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let `compute` use the weights while the body runs; every rank must call it."""
        if self._engine is None or self._is_whole:
            yield
        else:
            with self._engine.at_work():
                yield

    @contextmanager
    def whole(self) -> Iterator[LanguageModel]:
        """Give `model` all weights, on every rank, also under ZeRO 3; every rank must call it."""
        if self._engine is None or self._is_whole:
            yield self.model
            return
        with self._engine.gathered_weights():
            self._is_whole = True
            try:
                yield self.model
            finally:
                self._is_whole = False

    def finish(self, *, stays_divided: bool = False) -> None:
        """End the training; the model can still compute.

        Args:
            stays_divided: whether the ranks keep the weights divided until `save`; only for ZeRO 3.
        """
        self.model.eval()
        if self._engine is not None and not stays_divided:
            self._engine.finish()
            self._engine, self._is_whole = None, True

    def save(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Save the artifact, after `finish`; every rank must call it, and nothing may follow."""
        if self._engine is not None:
            self._engine.finish(only_first_rank=True)
        save_model(self.model, tokenizer, self.context)


def save_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase, context: Context) -> None:
    """Save the artifact: a whole model and its tokenizer, once for all ranks."""
    if context.dist_info.is_first:
        hub.save(model, tokenizer, context.artifact_dir)
