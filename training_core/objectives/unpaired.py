"""Objectives on single responses that are rated good or bad. Shapes: S responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from training_core.loop import Objective
from training_core.models.causal_lm import sequence_logprobs
from training_core.types import Batch, Loss, Mean, mean_of


@dataclass(frozen=True)
class UnpairedBatch:
    """Rated responses.

    Attributes:
        batch: S sequences.
        is_desirable: [S] bool.
        ref_logprobs: [S] summed log-probabilities under the reference.
        baseline: scalar, computed over the whole batch before it was cut.
    """

    batch: Batch
    is_desirable: Tensor
    ref_logprobs: Tensor
    baseline: Tensor


def unpaired(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], *, beta: float
) -> Objective[UnpairedBatch]:
    """Build the objective of an unpaired loss, counted per response.

    Args:
        loss: (log-ratios [S], is_desirable [S], baseline) -> [S]; see `UNPAIRED_LOSSES`.
        beta: scales the implicit rewards that are reported.
    """

    def objective(model: nn.Module, rated: UnpairedBatch) -> Loss:
        logratios = sequence_logprobs(model, rated.batch) - rated.ref_logprobs
        losses = loss(logratios, rated.is_desirable, rated.baseline)
        rewards = beta * logratios
        metrics = {
            "reward_desirable": mean_of(rewards, rated.is_desirable),
            "reward_undesirable": mean_of(rewards, ~rated.is_desirable),
            "baseline": mean_of(rated.baseline.expand_as(rewards)),
            "tokens": Mean(float(rated.batch.num_tokens), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective
