"""What every training stage does around its steps: resume, log, save, stop.

A step is an optimizer step (`training_core.loop` runs it), or a round of PPO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stages.contract import Context
from stages.training.checkpointing import Checkpoints
from training_core.distributed import any_rank
from training_core.errors import IntegrityError, StoppedError


@dataclass(frozen=True)
class StepDone:
    """What a stage reports after a step.

    Attributes:
        metrics: for the curves.
        text: for the progress bar.
        must_save: whether to save a checkpoint now, e.g. because the model is the best so far.
    """

    metrics: Mapping[str, float]
    text: str
    must_save: bool = False


def run_steps(
    steps: Callable[[int], Iterator[StepDone]],
    total: int,
    checkpoints: Checkpoints,
    context: Context,
    *,
    save_every: int,
) -> None:
    """Run all remaining steps.

    Args:
        steps: (number of steps already done) -> iterator that runs the others and yields after
            each.
        total: number of all steps.
        checkpoints: loads and saves the state of the stage.
        context: receives the metrics; `should_stop` is true if the stage must stop.
        save_every: steps between checkpoints; no regular checkpoint follows the last step.

    Raises:
        StoppedError: after SIGTERM; the checkpoint is saved first.
        IntegrityError: if the newest checkpoint is of a step that the stage does not have.
    """
    first = checkpoints.resume()
    if first > total:
        raise IntegrityError(
            f"expected a checkpoint of step {total} or lower, found one of step {first} below "
            f"{' or '.join(map(str, context.checkpoint_roots))}; delete it and run the stage again"
        )
    for step, done in enumerate(steps(first), first + 1):
        context.sink.log(step, done.metrics)
        context.sink.progress(step, total, done.text)
        must_stop = any_rank(context.should_stop(), context.dist_info)
        is_due = done.must_save or step % save_every == 0
        if must_stop or (is_due and step < total):
            checkpoints.save(step)
        if must_stop:
            raise StoppedError(f"stopped at step {step} of {total}; its checkpoint is saved")
