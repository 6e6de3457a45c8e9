"""Losses on pairs of responses, one number per pair. Shapes: B pairs.

`logratio_*` is log pi(response) - log pi_ref(response), summed over the response's tokens, in nats.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(
    logratio_chosen: Tensor, logratio_rejected: Tensor, *, beta: float, label_smoothing: float
) -> Tensor:
    """Direct preference optimisation; with label smoothing, the conservative variant.

        m = beta * (logratio_chosen - logratio_rejected)
        loss = -(1 - eps) * log sigmoid(m) - eps * log sigmoid(-m)

    Args:
        logratio_chosen: [B].
        logratio_rejected: [B].
        beta: > 0.
        label_smoothing: eps in [0, 0.5), the assumed share of flipped labels.

    Returns:
        [B]; ln 2 where policy and reference agree.

    Source:
        Rafailov et al. 2023, eq. 7, https://arxiv.org/abs/2305.18290;
        eps: Mitchell 2023, cDPO note, eq. 3.
    """
    margin = beta * (logratio_chosen - logratio_rejected)
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def ipo(logratio_chosen: Tensor, logratio_rejected: Tensor, *, beta: float) -> Tensor:
    """Identity preference optimisation on summed log-ratios.

        loss = (logratio_chosen - logratio_rejected - 1 / (2 beta))^2

    Args:
        logratio_chosen: [B].
        logratio_rejected: [B].
        beta: > 0, the paper's tau.

    Returns:
        [B].

    Source:
        Azar et al. 2023, eq. 17, https://arxiv.org/abs/2310.12036
        (the paper's variant: sums, not length averages).
    """
    return (logratio_chosen - logratio_rejected - 1 / (2 * beta)) ** 2


PREFERENCE_LOSSES: dict[str, Callable[..., Tensor]] = {"dpo": dpo, "ipo": ipo}
