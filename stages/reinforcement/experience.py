"""From scored rollouts to experience. Shapes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from training_core.algorithms.advantages import gae, token_rewards
from training_core.algorithms.masking import whiten
from training_core.data.batching import collate
from training_core.types import Batch, Experience, ScoredRollout

Ask = Callable[[Batch], Tensor]


def make_experience(
    scored: Sequence[ScoredRollout],
    policy: Ask,
    reference: Ask,
    critic: Ask,
    *,
    kl_estimator: Callable[[Tensor, Tensor], Tensor],
    kl_coef: float,
    gamma: float,
    gae_lambda: float,
    pad_id: int,
    device: torch.device,
) -> Experience:
    """Compute everything that needs the whole round, before it is split into micro-batches.

    Args:
        scored: B rollouts with rewards.
        policy: batch -> log-probabilities [B, T] before the update.
        reference: batch -> log-probabilities [B, T].
        critic: batch -> values [B, T].
        kl_estimator: (log-probabilities, reference's [B, T]) -> nats [B, T].
        kl_coef: penalty per nat of KL.
        gamma: discount factor.
        gae_lambda: lambda of GAE.
        pad_id: id of the padding token.
        device: device of the tensors.

    Returns:
        Experience whose advantages have mean 0 and variance 1 over the round's tokens.
    """
    batch = collate([s.rollout.example() for s in scored], pad_id, device)
    old_logprobs, ref_logprobs, values = policy(batch), reference(batch), critic(batch)
    rewards = token_rewards(
        torch.tensor([s.reward for s in scored], device=device),
        kl_estimator(old_logprobs, ref_logprobs),
        batch.loss_mask,
        kl_coef=kl_coef,
    )
    advantages, returns = gae(rewards, values, batch.loss_mask, gamma=gamma, gae_lambda=gae_lambda)
    return Experience(
        batch, old_logprobs, ref_logprobs, values, whiten(advantages, batch.loss_mask), returns
    )
