"""Policy losses with one ratio per response. Shapes: B sequences, T tokens.

They return the loss [B, T] and is_clipped [B, T], as those of `policy_losses`. All tokens of a
response have the same loss if they have the same advantage.
"""

from __future__ import annotations

from torch import Tensor

from training_core.algorithms.policy_tokens import PolicyTokens


def gspo(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """GSPO: PPO's loss on the geometric mean of the ratios of a response.

        s = exp(mean of (logprobs - old_logprobs) over the response)
        loss = -min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A)

    Args:
        tokens: of a micro-batch.
        clip_low: in (0, 1); the ranges are far smaller than PPO's.
        clip_high: > 0.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Zheng et al. 2025, eq. 5, https://arxiv.org/abs/2507.18071
    """
    ratio = tokens.mean_of_response(tokens.log_ratios()).exp()
    return _clipped(ratio.expand_as(tokens.logprobs), tokens.advantages, clip_low, clip_high)


def gspo_token(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """GSPO whose gradient flows through each token alone, for advantages that differ by token.

        s_t = sg(s) * r_t / sg(r_t)
        loss = -min(s_t * A_t, clip(s_t, 1 - clip_low, 1 + clip_high) * A_t)

    With one advantage per response, value and gradient are those of `gspo`, averaged over a
    response.

    Args:
        tokens: of a micro-batch.
        clip_low: in (0, 1).
        clip_high: > 0.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Zheng et al. 2025, eq. 13 and 14, https://arxiv.org/abs/2507.18071
    """
    of_response = tokens.mean_of_response(tokens.log_ratios()).detach().exp()
    ratio = of_response * (tokens.logprobs - tokens.logprobs.detach()).exp()
    return _clipped(ratio, tokens.advantages, clip_low, clip_high)


def gmpo(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """GMPO: the geometric mean of the clipped ratios of a response.

        d = logprobs - old_logprobs
        d' = min(d, clip(d, -clip_low, clip_high)) where A > 0, else the max of both
        loss = -exp(mean of d' over the response) * A

    Args:
        tokens: of a micro-batch; the advantages of a response have one sign.
        clip_low: > 0, of the log-ratio, in nats.
        clip_high: > 0, of the log-ratio, in nats.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Zhao et al. 2025, eq. 4, https://arxiv.org/abs/2507.20673
    """
    log_ratio = tokens.log_ratios()
    clipped = log_ratio.clamp(-clip_low, clip_high)
    is_good = tokens.advantages > 0
    chosen = log_ratio.minimum(clipped).where(is_good, log_ratio.maximum(clipped))
    return -tokens.mean_of_response(chosen).exp() * tokens.advantages, chosen != log_ratio


def _clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    plain = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -plain.minimum(clipped), clipped < plain
