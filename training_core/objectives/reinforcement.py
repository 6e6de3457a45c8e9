"""Objectives of policy and critic on experience. Shapes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from training_core.algorithms.aggregation import SumAndCount
from training_core.algorithms.masking import masked_sum
from training_core.algorithms.policy_tokens import PolicyTokens
from training_core.loop import Objective
from training_core.models.causal_lm import logprobs, logprobs_and_entropy
from training_core.models.scalar_head import token_values
from training_core.types import Batch, Experience, Loss, Mean, mean_of

PolicyLossFunction = Callable[[PolicyTokens], tuple[Tensor, Tensor]]
Aggregate = Callable[[Tensor, Tensor], SumAndCount]
ValueLoss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KlLoss:
    """The KL to the reference as a term of the loss.

    Attributes:
        estimator: (logprobs with gradient, ref_logprobs [B, T]) -> nats [B, T].
        coef: weight of the term.
        by_ratio: whether each token's KL is multiplied by policy / old policy, with gradient. Then
            the term is the KL of the trained policy, although the old policy sampled the tokens.
    """

    estimator: Callable[[Tensor, Tensor], Tensor]
    coef: float
    by_ratio: bool = False

    def per_token(self, tokens: PolicyTokens, ref_logprobs: Tensor) -> Tensor:
        """Return the KL of each token, [B, T] nats; with gradient."""
        kl = self.estimator(tokens.logprobs, ref_logprobs)
        return kl * tokens.ratios() if self.by_ratio else kl


@dataclass(frozen=True)
class PretrainingBatch:
    """A micro-batch of texts or demonstrations beside the experience of an optimizer step.

    Attributes:
        batch: the sequences.
        weight: of the summed negative log-likelihood, in the units of the policy loss's sum.
    """

    batch: Batch
    weight: float


def policy_objective(
    loss: PolicyLossFunction,
    aggregate: Aggregate,
    *,
    temperature: float,
    entropy_coef: float = 0.0,
    kl_loss: KlLoss | None = None,
) -> Objective[Experience | PretrainingBatch]:
    """Build the policy's objective: policy loss, KL and entropy, aggregated together.

    Args:
        loss: tokens -> loss, is_clipped [B, T].
        aggregate: (losses [B, T], mask [B, T]) -> sum, count.
        temperature: temperature of the sampling.
        entropy_coef: weight of the entropy, which is maximised.
        kl_loss: KL term; None if the KL is part of the reward, or is not used.
    """

    def objective(model: nn.Module, micro_batch: Experience | PretrainingBatch) -> Loss:
        if isinstance(micro_batch, PretrainingBatch):
            return _pretraining(model, micro_batch)
        experience, mask = micro_batch, micro_batch.batch.loss_mask
        logprobs, entropy = logprobs_and_entropy(model, experience.batch, temperature=temperature)
        old_logprobs = experience.old_logprobs
        if old_logprobs is None:
            old_logprobs = logprobs.detach()
        tokens = PolicyTokens(logprobs, old_logprobs, experience.advantages, mask)
        losses, is_clipped = loss(tokens)
        metrics = {
            "entropy": mean_of(entropy, mask),
            "clip_fraction": mean_of(is_clipped.float(), mask),
            "update_kl": mean_of(old_logprobs - logprobs, mask),
            "tokens": Mean(float(experience.batch.num_tokens), 1.0),
        }
        if experience.weights is not None:
            losses = losses * experience.weights
        if kl_loss is not None and experience.ref_logprobs is not None:
            kl = kl_loss.per_token(tokens, experience.ref_logprobs)
            losses = losses + kl_loss.coef * kl
            metrics["kl_loss"] = mean_of(kl, mask)
        if entropy_coef:
            losses = losses - entropy_coef * entropy
        return Loss(*aggregate(losses, mask), metrics)

    return objective


def _pretraining(model: nn.Module, micro_batch: PretrainingBatch) -> Loss:
    """PPO-ptx (Ouyang et al. 2022, eq. 2): its count is 0, because the policy loss is divided."""
    batch = micro_batch.batch
    losses = -logprobs(model, batch)
    metrics = {"pretraining_loss": mean_of(losses, batch.loss_mask)}
    return Loss(micro_batch.weight * losses.sum(), 0.0, metrics)


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
