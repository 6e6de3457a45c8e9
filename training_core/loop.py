"""The training loop: all stages use it for their optimizer steps.

`train_steps` is a generator. It yields a report after each optimizer step. Between two yields,
the code of the stage decides when to log, evaluate, save or stop. There are no callbacks and no
trainer object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from training_core.data.batching import WithoutLoss
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.distributed import pool_means
from training_core.engine.protocol import M, Objective, TrainEngine
from training_core.errors import NonFiniteError
from training_core.types import Mean, StepReport

__all__ = ["Objective", "train_steps"]


def train_steps(
    engine: TrainEngine,
    objective: Objective[M],
    batches: Iterable[Sequence[M | WithoutLoss[M]]],
    *,
    first_step: int = 0,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> Iterator[StepReport]:
    """Make one optimizer step per batch and report it.

    The objective returns a sum and a count. Both are added over micro-batches (and ranks), and the
    gradient is divided once, so that it does not depend on how the batch was cut.

    Args:
        engine: holds model, optimizer and schedule.
        objective: the loss of one micro-batch.
        batches: batches, each already cut into micro-batches; with several ranks each gets its own
            share of every batch, which may be empty.
        first_step: optimizer steps already done, for a resumed run.
        dist_info: this process; a report covers all ranks and is the same on each.

    Yields:
        One report per optimizer step, numbered from `first_step + 1`.

    Raises:
        NonFiniteError: if a loss or the gradient is NaN or infinite; the weights are then still
            those before the step.

    Source:
        Division by the global count: OpenRLHF#1249, TRL#2615, open-instruct#1498.
    """
    for step, micro_batches in enumerate(batches, first_step + 1):
        losses = [_backward(engine, objective, mb, step, i) for i, mb in enumerate(micro_batches)]
        pooled = pool_means(_pool(losses), dist_info)
        learning_rate = engine.learning_rate
        grad_norm = engine.step(pooled["loss"].count)
        if not math.isfinite(grad_norm):
            raise NonFiniteError(
                f"the gradient norm is {grad_norm} at step {step}; "
                f"the weights of step {step - 1} are kept. "
                "Lower the learning rate, or look at the loss curve in metrics.jsonl"
            )
        metrics = {
            name: mean.value for name, mean in pooled.items() if name not in ("loss", "tokens")
        }
        yield StepReport(
            step=step,
            loss=pooled["loss"].value,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            tokens=int(pooled["tokens"].total) if "tokens" in pooled else 0,
            metrics=metrics,
        )


def _backward(
    engine: TrainEngine,
    objective: Objective[M],
    micro_batch: M | WithoutLoss[M],
    step: int,
    index: int,
) -> dict[str, Mean]:
    if isinstance(micro_batch, WithoutLoss):
        engine.backward(engine.loss(objective, micro_batch.micro_batch).total * 0.0)
        return {}
    loss = engine.loss(objective, micro_batch)
    total = float(loss.total.detach())
    if not math.isfinite(total):
        raise NonFiniteError(
            f"the loss is {total} in micro-batch {index} of step {step}; "
            f"the weights of step {step - 1} are kept. "
            "Lower the learning rate, or look for a broken row in that batch"
        )
    engine.backward(loss.total)
    return {"loss": Mean(total, loss.count), **loss.metrics}


def _pool(losses: Sequence[dict[str, Mean]]) -> dict[str, Mean]:
    pooled: dict[str, Mean] = {}
    for loss in losses:
        for name, mean in loss.items():
            pooled[name] = pooled[name] + mean if name in pooled else mean
    return pooled
