"""Checkpoints of a stage: saved between two steps, found again by a later attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from stages.attempt import Attempt
from stages.contract import Context
from training_core import checkpoint
from training_core.distributed import all_gather_object
from training_core.engine.protocol import TrainEngine
from training_core.errors import IntegrityError

log = logging.getLogger(__name__)


class Part(Protocol):
    """Something whose state goes into checkpoints besides models and engines."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


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
            engine.load_shards(shards, context.attempt.universal)
        for name, part in (parts or {}).items():
            part.load_state_dict(state["parts"][name])
        _set_random_state(state["random"][context.dist_info.rank % len(state["random"])])
        context.sink.rewind(Attempt.of_checkpoint(candidate.directory).metrics, candidate.step)
        log.info("resumed at step %d from %s", candidate.step, candidate.directory)
        return candidate.step
    context.sink.rewind(context.attempt.metrics, 0)
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
                "random": all_gather_object(_random_state(), context.dist_info),
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
                dist_info=context.dist_info,
            )

    return save


@contextmanager
def _whole(engines: Sequence[TrainEngine]) -> Iterator[None]:
    if not engines:
        yield
        return
    with engines[0].gathered_weights(), _whole(engines[1:]):
        yield


def _random_state() -> dict[str, Any]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": on_gpu}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
