"""Losses that fit a reward to pairs. Shapes: B pairs."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def bradley_terry(
    reward_chosen: Tensor, reward_rejected: Tensor, *, centering_coef: float
) -> Tensor:
    """Negative log-likelihood of the preferences, plus a pull of each pair's mean reward towards 0.

        loss = log(1 + exp(r_rejected - r_chosen)) + centering_coef * (r_chosen + r_rejected)^2

    Args:
        reward_chosen: [B].
        reward_rejected: [B].
        centering_coef: >= 0.

    Returns:
        [B]; softplus, so that a large wrong margin does not overflow.

    Source:
        Ouyang et al. 2022, eq. 1, https://arxiv.org/abs/2203.02155;
        centering: Eisenstein et al. 2023, https://arxiv.org/abs/2312.09244
    """
    return (
        softplus(reward_rejected - reward_chosen)
        + centering_coef * (reward_chosen + reward_rejected) ** 2
    )
