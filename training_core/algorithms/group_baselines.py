"""Rewards relative to the other responses of a group. Shapes: B sequences, P prompts.

The lowest reward of a group is subtracted before anything else. So equal rewards give exactly 0:
Adam would turn the rounding of a mean into steps of full size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def minus_group_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """Subtract the mean reward of the group, the response itself included.

        x_i = r_i - mean(r of the group)

    Args:
        rewards: [B].
        groups: [B] int64, number of each response's group: 0, 1, 2, …

    Returns:
        [B].

    Source:
        Shao et al. 2024 (DeepSeekMath), section 4.1.2, https://arxiv.org/abs/2402.03300
    """
    above = _above_lowest(rewards, groups)
    return above - (group_sums(above, groups) / group_sizes(groups, rewards.dtype))[groups]


def minus_others_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """Subtract the mean reward of the other responses of the group: an unbiased baseline.

        x_i = r_i - mean(r_j of the group, j != i) = n / (n - 1) * (r_i - mean(r of the group))

    Args:
        rewards: [B].
        groups: [B] int64; each group has at least 2 responses.

    Returns:
        [B].

    Source:
        Kool et al. 2019; for RLHF Ahmadian et al. 2024, eq. 9, https://arxiv.org/abs/2402.14740
    """
    above = _above_lowest(rewards, groups)
    others = group_sums(above, groups)[groups] - above
    return above - others / (group_sizes(groups, rewards.dtype)[groups] - 1)


def group_stds(rewards: Tensor, groups: Tensor) -> Tensor:
    """Standard deviation of each response's group, with Bessel's correction (n - 1).

    Args:
        rewards: [B].
        groups: [B] int64; each group has at least 2 responses.

    Returns:
        [B], the same for all responses of a group.

    Source:
        The correction is that of TRL, verl and OpenRLHF; the paper does not say which one it uses:
        https://arxiv.org/abs/2402.03300, section 4.1.2.
    """
    squares = group_sums(minus_group_mean(rewards, groups) ** 2, groups)
    return (squares / (group_sizes(groups, rewards.dtype) - 1)).sqrt()[groups]


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Sum `values` over each group.

    Args:
        values: [B].
        groups: [B] int64.

    Returns:
        [P], by number of the group.

    Source:
        A plain sum.
    """
    sums = values.new_zeros(int(groups.max()) + 1)
    return sums.index_add(0, groups, values)


def group_sizes(groups: Tensor, dtype: torch.dtype) -> Tensor:
    """Count the responses of each group.

    Args:
        groups: [B] int64.
        dtype: of the result.

    Returns:
        [P], by number of the group.

    Source:
        A plain count.
    """
    return groups.bincount().to(dtype)


def _above_lowest(rewards: Tensor, groups: Tensor) -> Tensor:
    lowest = rewards.new_zeros(int(groups.max()) + 1)
    lowest = lowest.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    return rewards - lowest[groups]
