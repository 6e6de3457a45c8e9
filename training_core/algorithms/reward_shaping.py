"""Changes to the rewards of responses before the advantages. Shapes: B responses, R rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from training_core.algorithms import group_baselines as baselines


def overlong_penalties(
    lengths: Tensor, *, max_tokens: int, buffer_tokens: int, penalty: float
) -> Tensor:
    """Penalty that grows over the last `buffer_tokens` before the token limit.

        penalty * clip(length - (max_tokens - buffer_tokens), 0, buffer_tokens) / buffer_tokens

    Args:
        lengths: [B] tokens of each response.
        max_tokens: limit of a response.
        buffer_tokens: in [1, max_tokens].
        penalty: >= 0, at the limit, in units of the reward; subtract the result from the reward.

    Returns:
        [B], >= 0.

    Source:
        Yu et al. 2025 (DAPO), eq. 13, https://arxiv.org/abs/2503.14476
    """
    excess = (lengths - (max_tokens - buffer_tokens)).clamp(0, buffer_tokens)
    return penalty * excess / buffer_tokens


def stop_properly(rewards: Tensor, is_finished: Tensor, *, factor: float) -> Tensor:
    """Scale down the reward of responses that the token limit cut.

        r' = min(r, factor * r) where the response is cut

    A negative reward stays: scaled down it would reward the cut.

    Args:
        rewards: [B].
        is_finished: [B] bool.
        factor: in [0, 1].

    Returns:
        [B].

    Source:
        NVIDIA 2025 (ProRL v2), stop-properly penalty; OpenRLHF's
        `reward.stop_properly_penalty_coef`, which scales negative rewards too.
    """
    return torch.where(is_finished, rewards, rewards.minimum(factor * rewards))


def pooled_moments(
    moments: tuple[float, float, float], values: Tensor
) -> tuple[float, float, float]:
    """Add values to the moments of those before.

        delta = mean(values) - mean
        mean' = mean + delta * m / (n + m)
        squares' = squares + sum((v - mean(values))^2) + delta^2 * n * m / (n + m)

    Args:
        moments: count n, mean, and sum of the squared differences from the mean.
        values: [m], at least one.

    Returns:
        The moments of all values.

    Source:
        Chan, Golub & LeVeque 1979, eq. 2.1
    """
    count, mean, squares = moments
    new, new_mean = float(values.numel()), float(values.mean())
    total, delta = count + new, new_mean - mean
    added = float(((values - new_mean) ** 2).sum()) + delta**2 * count * new / total
    return total, mean + delta * new / total, squares + added


def gdpo(rewards: Tensor, weights: Tensor, groups: Tensor, *, std_epsilon: float) -> Tensor:
    """Normalise each reward within the group, add them, and normalise over the batch.

        x_k = (r_k - mean(r_k of the group)) / (std(r_k of the group) + std_epsilon)
        x = sum_k w_k * x_k;  A = (x - mean(x)) / (std(x) + std_epsilon)

    Added first, different combinations of rewards with one sum would get the same advantage.

    Args:
        rewards: [R, B].
        weights: [R].
        groups: [B] int64, number of each response's group; groups of at least 2.
        std_epsilon: > 0.

    Returns:
        advantages [B].

    Source:
        Liu et al. 2026, section 3, https://arxiv.org/abs/2601.05242; stds with Bessel's correction
    """
    normalised = [
        baselines.minus_group_mean(each, groups)
        / (baselines.group_stds(each, groups) + std_epsilon)
        for each in rewards
    ]
    total = (weights[:, None] * torch.stack(normalised)).sum(dim=0)
    return (total - total.mean()) / (total.std() + std_epsilon)
