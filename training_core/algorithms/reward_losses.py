"""Losses of reward models on pairs, one number per pair. Shapes: B pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(
    reward_chosen: Tensor,
    reward_rejected: Tensor,
    margin: Tensor | float = 0.0,
    *,
    centering_coef: float,
) -> Tensor:
    """Negative log-likelihood of the preferences, plus a term that keeps rewards near 0.

        loss = -log sigmoid(r+ - r- - margin) + centering_coef * (r+ + r-)^2

    Args:
        reward_chosen: [B] r+.
        reward_rejected: [B] r-.
        margin: [B] >= 0, or a number; rated distance of the two responses, in units of the reward.
        centering_coef: >= 0.

    Returns:
        [B]; it does not overflow for large differences.

    Source:
        Ouyang et al. 2022, eq. 1, https://arxiv.org/abs/2203.02155;
        margin: Touvron et al. 2023 (Llama 2), eq. 2, https://arxiv.org/abs/2307.09288;
        centering: Eisenstein et al. 2023, https://arxiv.org/abs/2312.09244
    """
    likelihood = -logsigmoid(reward_chosen - reward_rejected - margin)
    return likelihood + centering_coef * (reward_chosen + reward_rejected) ** 2


def log_exp(
    reward_chosen: Tensor,
    reward_rejected: Tensor,
    margin: Tensor | float = 0.0,
    *,
    centering_coef: float,
) -> Tensor:
    """Log-exp loss: OpenRLHF's name for `bradley_terry`.

        loss = log(1 + exp(r- - r+ + margin)) + centering_coef * (r+ + r-)^2

    Since -log sigmoid(x) = log(1 + exp(-x)), both functions give the same numbers. OpenRLHF
    computes this formula as written, which overflows in float32 for differences of at least 89,
    and it ignores margins.

    Args:
        reward_chosen: [B] r+.
        reward_rejected: [B] r-.
        margin: [B] >= 0, or a number, in units of reward.
        centering_coef: >= 0.

    Returns:
        [B]; never overflows.

    Source:
        Askell et al. 2021, section 3.1, https://arxiv.org/abs/2112.00861
    """
    wrong_by = reward_rejected - reward_chosen + margin
    likelihood = torch.logaddexp(wrong_by, torch.zeros_like(wrong_by))
    return likelihood + centering_coef * (reward_chosen + reward_rejected) ** 2


REWARD_LOSSES: dict[str, Callable[..., Tensor]] = {
    "bradley_terry": bradley_terry,
    "log_exp": log_exp,
}
