"""Checkpoints of a stage: saved between two steps, loaded by a later attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from stages.attempt import Attempt
from stages.contract import Context
from training_core import checkpoint
from training_core.distributed import all_gather_object
from training_core.engine.protocol import StateDict, TrainEngine
from training_core.errors import IntegrityError

log = logging.getLogger(__name__)

BEFORE_ALL = -1
"""Lower than every step of a curve; step 0 is what is measured before the first one."""


class Part(Protocol):
    """Something whose state goes into checkpoints besides models and engines."""

    def state_dict(self) -> StateDict:
        """Return tensors and plain values."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        ...


@dataclass(frozen=True)
class Checkpoints:
    """Save the state of a training stage between two steps, and load it at the start.

    Attributes:
        context: has the folder of the checkpoints and the rank of this process.
        models: by name.
        engines: by name; each can gather the weights of its model.
        keep: number of newest checkpoints to keep.
        parts: other objects with a state, by name.
        keep_gib: total size in GiB; beyond it old checkpoints are deleted.
        protected: returns the steps whose checkpoints are never deleted.
    """

    context: Context
    models: Mapping[str, nn.Module]
    engines: Mapping[str, TrainEngine]
    keep: int
    parts: Mapping[str, Part] = field(default_factory=dict)
    keep_gib: float | None = None
    protected: Callable[[], Sequence[int]] = tuple

    def resume(self) -> int:
        """Load the newest intact checkpoint of this or an earlier attempt, and its curves.

        Returns:
            Number of steps already done; 0 if there is no intact checkpoint.
        """
        context = self.context
        for candidate in checkpoint.complete_checkpoints(context.checkpoint_roots):
            try:
                state = checkpoint.load(candidate, self._filled())
            except IntegrityError as error:
                log.warning("a damaged checkpoint is skipped: %s", error)
                continue
            self._restore(candidate.directory / checkpoint.SHARDS, state)
            context.sink.rewind(Attempt.of_checkpoint(candidate.directory).metrics, candidate.step)
            log.info("resumed at step %d from %s", candidate.step, candidate.directory)
            return candidate.step
        context.sink.rewind(context.attempt.metrics, BEFORE_ALL)
        return 0

    def _restore(self, shards: Path, state: StateDict) -> None:
        """Restore everything except the models' weights."""
        for name, engine in self.engines.items():
            engine.load_state_dict(state["engines"][name])
            engine.load_shards(shards / name, self.context.attempt.universal)
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        _set_random_state(state["random"][self.context.dist_info.rank % len(state["random"])])

    def save(self, step: int) -> None:
        """Write a checkpoint after `step`; all ranks must call this together."""
        context = self.context
        with self._on_first_rank():
            state = {
                "engines": {name: engine.state_dict() for name, engine in self.engines.items()},
                "parts": {name: part.state_dict() for name, part in self.parts.items()},
                "random": all_gather_object(_random_state(), context.dist_info),
            }
            checkpoint.save(
                context.checkpoint_roots[0],
                step,
                self.models,
                state,
                keep=self.keep,
                keep_gib=self.keep_gib,
                protected=self.protected(),
                shards=self._save_shards,
                dist_info=context.dist_info,
            )

    def load_step(self, step: int, model: str) -> StateDict:
        """Load the weights of one model as they were after `step`.

        Returns:
            The state in the checkpoint, e.g. of the other parts.

        Raises:
            IntegrityError: if this and the earlier attempts have no intact checkpoint of `step`.
        """
        return checkpoint.load(self._candidate(step), self._filled(model))

    def resume_at(self, step: int) -> None:
        """Load the state after `step` into engines that are in use.

        Raises:
            IntegrityError: see `load_step`.
        """
        candidate = self._candidate(step)
        state = checkpoint.load(candidate, self._filled())
        self._restore(candidate.directory / checkpoint.SHARDS, state)

    def _candidate(self, step: int) -> checkpoint.Checkpoint:
        roots = self.context.checkpoint_roots
        for candidate in checkpoint.complete_checkpoints(roots):
            if candidate.step == step:
                return candidate
        raise IntegrityError(
            f"the best checkpoint, of step {step}, is missing from "
            f"{', '.join(map(str, roots))}; run the stage from the start"
        )

    def _save_shards(self, directory: Path) -> None:
        for name, engine in self.engines.items():
            engine.save_shards(directory / name)

    def _filled(self, *names: str) -> dict[str, nn.Module]:
        """Return the models of these names, by default all, except those without weights.

        The latter are in the shards of an engine, or only the first rank has them.
        """
        chosen = {name: self.models[name] for name in names or self.models}
        return {
            name: model
            for name, model in chosen.items()
            if any(parameter.numel() for parameter in model.parameters())
        }

    @contextmanager
    def _on_first_rank(self) -> Iterator[None]:
        """Give the first rank all weights for the duration of the block."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.weights_on_first_rank())
            yield


def _random_state() -> StateDict:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpu}


def _set_random_state(state: StateDict) -> None:
    torch.set_rng_state(state["cpu"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
