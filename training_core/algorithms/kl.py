"""Estimators of KL(policy || reference) from sampled tokens. Shapes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Log-ratio: unbiased, can be negative.

        k1 = log p - log q

    Args:
        logprobs: [B, T] log-probabilities of the sampled tokens under the policy that sampled them.
        ref_logprobs: [B, T] log-probabilities of the same tokens under the reference.

    Returns:
        [B, T] nats.

    Source:
        Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio: biased, low variance; its gradient is the one of the reverse KL.

        k2 = (log p - log q)^2 / 2

    Args:
        logprobs: [B, T].
        ref_logprobs: [B, T].

    Returns:
        [B, T] nats.

    Source:
        Schulman 2020, http://joschu.net/blog/kl-approx.html
    """
    return (logprobs - ref_logprobs) ** 2 / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Log-ratio with a control variate: unbiased and never negative.

        k3 = q/p - 1 - log(q/p)

    Args:
        logprobs: [B, T].
        ref_logprobs: [B, T].

    Returns:
        [B, T] nats.

    Source:
        Schulman 2020, http://joschu.net/blog/kl-approx.html
    """
    log_ratio = ref_logprobs - logprobs
    return log_ratio.exp() - 1 - log_ratio


def adapted_coef(coef: float, kl: float, *, target: float, horizon: int, responses: int) -> float:
    """Raise the KL coefficient if the KL is above its target, lower it if it is below.

        e = clip(kl / target - 1, -0.2, 0.2)
        coef' = coef * (1 + e * responses / horizon)

    Args:
        coef: > 0.
        kl: mean KL of the round, in nats per response.
        target: > 0, in nats per response.
        horizon: > 0, in responses; larger adapts more slowly.
        responses: responses of the round.

    Returns:
        The coefficient of the next round.

    Source:
        Ziegler et al. 2019, section 2.2, https://arxiv.org/abs/1909.08593, with the horizon of
        their code in place of the constant 0.1
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * responses / horizon)


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
