"""From groups of scored rollouts to experience. Shapes: B sequences, T tokens.

Everything that needs the whole round is computed here, before it is split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stages.reinforcement.rollout_group import RolloutGroup
from training_core.algorithms.estimators import Advantages, RoundRewards
from training_core.data.batching import collate
from training_core.types import Batch, Experience, Rollout

TokenFunction = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class TokenFunctions:
    """What the models of a round compute: batch -> [B, T], zero outside the loss mask.

    Attributes:
        policy: log-probabilities before the update; None takes those of the sampler.
        reference: log-probabilities; None without a KL penalty.
        critic: values; None without a critic.
        critic_end: value after the last token of each response, in its column; None if the end of
            each response is the end of its episode.
    """

    policy: TokenFunction | None
    reference: TokenFunction | None = None
    critic: TokenFunction | None = None
    critic_end: TokenFunction | None = None


@dataclass(frozen=True)
class EvaluatedRollouts:
    """The rollouts of a round as tensors, with the outputs of the models; [B, T] floats.

    Attributes:
        rollouts: B, group by group.
        batch: the sequences.
        sampler_logprobs: log-probabilities under the sampling distribution.
        old_logprobs: log-probabilities before the update, of the trainer or of the sampler.
        ref_logprobs: log-probabilities under the reference, if there is one.
        values: of the critic, if there is one.
        end_values: [B] values after the last tokens, if they are used.
    """

    rollouts: Sequence[Rollout]
    batch: Batch
    sampler_logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    end_values: Tensor | None = None

    def kl_per_response(self) -> float | None:
        """Return the mean KL to the reference in nats per response; None without a reference."""
        if self.ref_logprobs is None:
            return None
        return float((self.old_logprobs - self.ref_logprobs).sum(dim=1).mean())


@dataclass(frozen=True)
class Estimation:
    """How advantages are estimated.

    Attributes:
        estimate: rewards of a round -> advantages, returns [B, T].
        kl_estimator: (logprobs, ref_logprobs [B, T]) -> nats [B, T].
        correct: (log-ratios of trainer to sampler, mask [B, T]) -> weights [B, T]; None corrects
            nothing.
        masks_unfinished: whether responses that the token limit cut are not trained on.
        old_in_update: whether the update takes its own log-probabilities as the old ones.
        part_weights: weight of each part of the rewards by label, if the advantages use the parts.
    """

    estimate: Callable[[RoundRewards], Advantages]
    kl_estimator: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None = None
    masks_unfinished: bool = False
    old_in_update: bool = False
    part_weights: Mapping[str, float] = field(default_factory=dict)


def evaluate(
    rollouts: Sequence[Rollout], functions: TokenFunctions, *, pad_id: int, device: torch.device
) -> EvaluatedRollouts:
    """Compute what the models say about the rollouts of a round.

    Args:
        rollouts: B rollouts.
        functions: the models.
        pad_id: id of the padding token.
        device: device of the tensors.
    """
    batch = collate([rollout.example() for rollout in rollouts], pad_id, device)
    sampled = _sampler_logprobs(rollouts, batch)
    end_values = None
    if functions.critic_end is not None:
        is_cut = torch.tensor([not r.is_finished for r in rollouts], device=device)
        end_values = functions.critic_end(batch).sum(dim=1) * is_cut
    return EvaluatedRollouts(
        rollouts,
        batch,
        sampled,
        sampled if functions.policy is None else functions.policy(batch),
        None if functions.reference is None else functions.reference(batch),
        None if functions.critic is None else functions.critic(batch),
        end_values,
    )


def _sampler_logprobs(rollouts: Sequence[Rollout], batch: Batch) -> Tensor:
    logprobs = torch.zeros(batch.input_ids.shape, dtype=torch.float32)
    for row, rollout in enumerate(rollouts):
        first = len(rollout.prompt.input_ids)
        end = first + len(rollout.response_ids)
        logprobs[row, first:end] = torch.tensor(rollout.logprobs)
    return logprobs.to(batch.input_ids.device).masked_fill(~batch.loss_mask, 0.0)


def make_experience(
    evaluation: EvaluatedRollouts,
    groups: Sequence[RolloutGroup],
    estimation: Estimation,
    *,
    kl_coef: float,
) -> Experience | None:
    """Estimate the advantages of a round.

    Args:
        evaluation: of the rollouts of `groups`, in their order.
        groups: with the rewards that the policy maximises.
        estimation: how.
        kl_coef: penalty per nat of KL in the token rewards.

    Returns:
        The experience of all responses that are trained on; None if there are none.
    """
    mask, old_logprobs = evaluation.batch.loss_mask, evaluation.old_logprobs
    is_trained = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    if estimation.masks_unfinished:
        is_trained = torch.tensor([r.is_finished for r in evaluation.rollouts], device=mask.device)
    kl = torch.zeros_like(old_logprobs)
    if evaluation.ref_logprobs is not None:
        kl = estimation.kl_estimator(old_logprobs, evaluation.ref_logprobs)
    rewards = RoundRewards(
        **_rewards_of(groups, estimation.part_weights, mask.device),
        kl=kl,
        kl_coef=kl_coef,
        loss_mask=mask & is_trained[:, None],
        values=evaluation.values,
        end_values=evaluation.end_values,
    )
    advantages, returns = estimation.estimate(rewards)
    weights = None
    if estimation.correct is not None:
        weights = estimation.correct(old_logprobs - evaluation.sampler_logprobs, mask)
    values = torch.zeros_like(returns) if evaluation.values is None else evaluation.values
    experience = Experience(
        evaluation.batch,
        None if estimation.old_in_update else old_logprobs,
        advantages,
        returns,
        values,
        evaluation.ref_logprobs,
        weights,
    )
    if is_trained.all():
        return experience
    return experience.rows(is_trained.nonzero()[:, 0]) if is_trained.any() else None


def _rewards_of(
    groups: Sequence[RolloutGroup], part_weights: Mapping[str, float], device: torch.device
) -> dict[str, Tensor]:
    """Return rewards [B], numbers of groups [B], and greedy rewards [B] or parts [R, B] if any."""
    numbered = [(number, s) for number, group in enumerate(groups) for s in group.scored]
    found = {
        "rewards": torch.tensor([s.reward for _, s in numbered], device=device),
        "groups": torch.tensor([number for number, _ in numbered], device=device),
    }
    if part_weights:
        parts = [[s.components[label] for _, s in numbered] for label in part_weights]
        found["parts"] = torch.tensor(parts, device=device)
        found["part_weights"] = torch.tensor(list(part_weights.values()), device=device)
    greedy = [group.greedy.reward for group in groups if group.greedy is not None]
    if len(greedy) == len(groups):
        found["greedy_rewards"] = torch.tensor(greedy, device=device)[found["groups"]]
    return found
