"""Objectives of policy and critic on experience. Shapes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from training_core.algorithms.masking import masked_sum
from training_core.loop import Objective
from training_core.models.causal_lm import logprobs_and_entropy
from training_core.models.scalar_head import token_values
from training_core.types import Experience, Loss, Mean, mean_of

PolicyLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
ValueLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


def policy_objective(loss: PolicyLoss, *, temperature: float) -> Objective[Experience]:
    """Build the policy's objective, counted per token.

    Args:
        loss: (logprobs, old_logprobs, advantages [B, T]) -> loss, is_clipped [B, T].
        temperature: temperature of the sampling.
    """

    def objective(model: nn.Module, experience: Experience) -> Loss:
        mask = experience.batch.loss_mask
        logprobs, entropy = logprobs_and_entropy(model, experience.batch, temperature=temperature)
        losses, is_clipped = loss(logprobs, experience.old_logprobs, experience.advantages)
        metrics = {
            "entropy": mean_of(entropy, mask),
            "clip_fraction": mean_of(is_clipped.float(), mask),
            "update_kl": mean_of(experience.old_logprobs - logprobs, mask),
            "tokens": Mean(float(experience.batch.num_tokens), 1.0),
        }
        return Loss(masked_sum(losses, mask), float(mask.sum()), metrics)

    return objective


def value_objective(loss: ValueLoss) -> Objective[Experience]:
    """Build the critic's objective, counted per token.

    Args:
        loss: (values, old_values, returns [B, T]) -> [B, T].
    """

    def objective(model: nn.Module, experience: Experience) -> Loss:
        mask = experience.batch.loss_mask
        values = token_values(model, experience.batch)
        losses = loss(values, experience.values, experience.returns)
        metrics = {"value": mean_of(values, mask), "return": mean_of(experience.returns, mask)}
        return Loss(masked_sum(losses, mask), float(mask.sum()), metrics)

    return objective
