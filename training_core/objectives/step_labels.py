"""The objective of a process reward model. Shapes: K labelled steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from training_core.loop import Objective
from training_core.models.step_head import step_scores
from training_core.types import Batch, Loss, Mean, mean_of


@dataclass(frozen=True)
class StepBatch:
    """Solutions with labelled steps.

    Attributes:
        batch: S sequences, one per row.
        ends: [K, 2] row and column of the last token of each labelled step.
        labels: [K] floats in [0, 1]: probability that the step is right.
    """

    batch: Batch
    ends: Tensor
    labels: Tensor


def process_reward(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Objective[StepBatch]:
    """Build the objective of a process reward model, counted per labelled step.

    Args:
        loss: (scores [K], labels [K]) -> [K].
    """

    def objective(model: nn.Module, steps: StepBatch) -> Loss:
        scores = step_scores(model, steps.batch, steps.ends)
        losses = loss(scores, steps.labels.to(scores.dtype))
        is_right = (scores > 0) == (steps.labels > 0.5)  # noqa: PLR2004 - more likely right than not
        metrics = {
            "accuracy": mean_of(is_right.float()),
            "tokens": Mean(float(steps.batch.num_tokens), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective
