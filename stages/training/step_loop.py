"""The body of every training stage: resume, make the steps that are left, log, save, stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stages.contract import Context
from stages.training.checkpointing import Checkpoints
from training_core.distributed import any_rank
from training_core.errors import StoppedError


@dataclass(frozen=True)
class StepDone:
    """What a stage has to say of a step that is made.

    Attributes:
        metrics: for the curves.
        text: for whoever watches.
        must_save: whether its state is saved now, e.g. because it is the best so far.
    """

    metrics: Mapping[str, float]
    text: str
    must_save: bool = False


def make_steps(
    steps: Callable[[int], Iterator[StepDone]],
    total: int,
    checkpoints: Checkpoints,
    context: Context,
    *,
    save_every: int,
) -> None:
    """Make all steps that are not made yet.

    Args:
        steps: (steps already made) -> makes the others, and yields after each.
        total: how many there are.
        checkpoints: what the stage goes on from.
        context: where curves go, and who asks to stop.
        save_every: steps between checkpoints; the last step needs none.

    Raises:
        StoppedError: after SIGTERM, once the state is saved.
    """
    first = checkpoints.resume()
    for step, done in enumerate(steps(first), first + 1):
        context.sink.log(step, done.metrics)
        context.sink.progress(step, total, done.text)
        must_stop = any_rank(context.should_stop(), context.dist_info)
        is_due = done.must_save or step % save_every == 0
        if must_stop or (is_due and step < total):
            checkpoints.save(step)
        if must_stop:
            raise StoppedError(f"stopped at step {step} of {total}; its checkpoint is saved")
