"""Losses of reward models on pairs, one number per pair. Shapes: B pairs."""

from __future__ import annotations

from collections.abc import Callable

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

    OpenRLHF's log-exp loss, log(1 + exp(r- - r+)), is the same function. Computed as written, it
    overflows in float32 for differences of at least 89.

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


REWARD_LOSSES: dict[str, Callable[..., Tensor]] = {
    "bradley_terry": bradley_terry,
    "log_exp": bradley_terry,  # OpenRLHF's name for the same function
}
