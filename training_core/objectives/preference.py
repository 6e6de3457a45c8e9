"""Objectives on pairs. Shapes: B pairs, the sequences 0…B-1 (chosen) and B…2B-1 (rejected)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from training_core.algorithms.pair_logprobs import PairLogprobs, chosen_nll
from training_core.loop import Objective
from training_core.models.causal_lm import sequence_logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.types import Batch, Loss, Mean, mean_of


@dataclass(frozen=True)
class PairBatch:
    """Pairs.

    Attributes:
        batch: 2B sequences, the chosen ones first.
        ref_logprobs: [2B] summed log-probabilities under the reference; None without one.
        margins: [B] differences of the ratings of each pair; None if unknown.
    """

    batch: Batch
    ref_logprobs: Tensor | None = None
    margins: Tensor | None = None


def pair_logprobs(model: nn.Module, pairs: PairBatch) -> PairLogprobs:
    """Compute the inputs of a preference loss, with gradient."""
    batch = pairs.batch
    chosen, rejected = sequence_logprobs(model, batch).chunk(2)
    chosen_tokens, rejected_tokens = batch.sequence_sums(batch.loss_mask.to(chosen.dtype)).chunk(2)
    references = (None, None) if pairs.ref_logprobs is None else pairs.ref_logprobs.chunk(2)
    return PairLogprobs(chosen, rejected, chosen_tokens, rejected_tokens, *references)


def preference(
    loss: Callable[[PairLogprobs], Tensor],
    rewards: Callable[[PairLogprobs], tuple[Tensor, Tensor]],
    *,
    nll_coef: float = 0.0,
) -> Objective[PairBatch]:
    """Build the objective of a preference loss, counted per pair.

    Args:
        loss: pairs -> [B], a function in `PREFERENCE_LOSSES` with its hyperparameters.
        rewards: pairs -> chosen [B], rejected [B]; `implicit_rewards` of the same entry.
        nll_coef: weight of the chosen response's mean negative log-likelihood.
    """

    def objective(model: nn.Module, batch: PairBatch) -> Loss:
        pairs = pair_logprobs(model, batch)
        nll = chosen_nll(pairs)
        losses = loss(pairs) + nll_coef * nll
        chosen, rejected = rewards(pairs)
        metrics = {
            "accuracy": mean_of((chosen > rejected).float()),
            "reward_chosen": mean_of(chosen),
            "reward_rejected": mean_of(rejected),
            "reward_margin": mean_of(chosen - rejected),
            "nll_chosen": mean_of(nll),
            "tokens": Mean(float(batch.batch.num_tokens), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective


def pairwise_reward(loss: Callable[..., Tensor]) -> Objective[PairBatch]:
    """Build the objective of a reward model, counted per pair.

    Args:
        loss: (reward_chosen [B], reward_rejected [B], margin) -> [B]; see `REWARD_LOSSES`.
    """

    def objective(model: nn.Module, pairs: PairBatch) -> Loss:
        chosen, rejected = sequence_scores(model, pairs.batch).chunk(2)
        losses = loss(chosen, rejected, 0.0 if pairs.margins is None else pairs.margins)
        metrics = {
            "accuracy": mean_of((chosen > rejected).float()),
            "reward_margin": mean_of(chosen - rejected),
            "tokens": Mean(float(pairs.batch.num_tokens), 1.0),
        }
        return Loss(losses.sum(), float(len(losses)), metrics)

    return objective
