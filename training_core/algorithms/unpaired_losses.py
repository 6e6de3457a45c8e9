"""Losses on single responses that are desirable or not, one number each. Shapes: B responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def mismatched_kl(logratios: Tensor) -> Tensor:
    """Estimate KL(policy || reference) from prompts combined with responses of other prompts.

        kl = max(0, mean(log pi(y' | x) - log pi_ref(y' | x)))

    y' is the response of another example of the batch. So prompts and responses come from the
    batch, but no response is compared with itself.

    Args:
        logratios: [M] nats, summed over the tokens of y', of the *whole* batch. With a mean over a
            micro-batch or one rank, the gradient would depend on how the batch is split.

    Returns:
        Scalar >= 0 without gradient, in nats per response.

    Source:
        Ethayarajh et al. 2024, section 4.1, https://arxiv.org/abs/2402.01306
    """
    return logratios.detach().mean().clamp(min=0.0)


def kto(
    logratios: Tensor,
    is_desirable: Tensor,
    kl: Tensor | float,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> Tensor:
    """Kahneman-Tversky optimisation: a value function that saturates around the baseline.

        desirable:    w_d * (1 - sigmoid(beta * (l - kl)))
        undesirable:  w_u * (1 - sigmoid(beta * (kl - l)))

    Args:
        logratios: [B] l = log pi(y | x) - log pi_ref(y | x), nats, summed over the tokens.
        is_desirable: [B] bool.
        kl: scalar >= 0, without gradient, from `mismatched_kl`.
        beta: > 0, per nat.
        desirable_weight: w_d > 0; w_d * (number desirable) should be 1 to 1.33 times
            w_u * (number undesirable).
        undesirable_weight: w_u > 0.

    Returns:
        [B]; half the weight if l equals the baseline.

    Source:
        Ethayarajh et al. 2024, section 4.1, https://arxiv.org/abs/2402.01306
    """
    gain = beta * (logratios - kl)
    # 1 - sigmoid(x) = sigmoid(-x), which is more precise if sigmoid(x) is close to 1.
    desirable = desirable_weight * (-gain).sigmoid()
    undesirable = undesirable_weight * gain.sigmoid()
    return torch.where(is_desirable, desirable, undesirable)


@dataclass(frozen=True)
class UnpairedLoss:
    """An entry of `UNPAIRED_LOSSES`.

    Attributes:
        function: (logratios [B], is_desirable [B], baseline, **hyperparameters) -> [B].
        baseline: (log-ratios of mismatched pairs [M]) -> scalar, over the whole batch.
    """

    function: Callable[..., Tensor]
    baseline: Callable[[Tensor], Tensor]


UNPAIRED_LOSSES: dict[str, UnpairedLoss] = {"kto": UnpairedLoss(kto, mismatched_kl)}
