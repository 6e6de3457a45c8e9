"""Policy losses per token, not yet reduced, and the table that names them.

Shapes: B sequences, T tokens. A loss returns the loss [B, T], and is_clipped [B, T] bool: where the
clip removed the gradient. With A the advantage, all of them have the gradient of -A * logprob, the
policy gradient, where the policy is still the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from training_core.algorithms import sequence_policy_losses as of_sequences
from training_core.algorithms.policy_tokens import PolicyTokens

LossAndClipped = tuple[Tensor, Tensor]


def ppo_clip(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> LossAndClipped:
    """Clipped surrogate objective of PPO, negated.

        r = exp(logprobs - old_logprobs)
        loss = -min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)

    Args:
        tokens: of a micro-batch.
        clip_low: in (0, 1).
        clip_high: > 0; with a value above `clip_low` it is DAPO's clip-higher.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Schulman et al. 2017, eq. 7, https://arxiv.org/abs/1707.06347; clip-higher: https://arxiv.org/abs/2503.14476
    """
    ratio = tokens.ratios()
    plain = ratio * tokens.advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * tokens.advantages
    return -plain.minimum(clipped), clipped < plain


def dual_clip(
    tokens: PolicyTokens, *, clip_low: float, clip_high: float, dual: float
) -> LossAndClipped:
    """PPO's loss with a second clip, which limits the loss of bad tokens that became likely.

        A >= 0: the loss of ppo_clip
        A < 0:  -max(min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A), dual * A)

    Args:
        tokens: of a micro-batch.
        clip_low: in (0, 1).
        clip_high: > 0.
        dual: > 1, largest ratio that counts where A < 0.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Ye et al. 2020, eq. 5, https://arxiv.org/abs/1912.09729
    """
    loss, is_clipped = ppo_clip(tokens, clip_low=clip_low, clip_high=clip_high)
    limit = -dual * tokens.advantages
    is_above = (tokens.advantages < 0) & (loss > limit)
    return torch.where(is_above, limit, loss), is_clipped | is_above


def cispo(tokens: PolicyTokens, *, max_ratio: float) -> LossAndClipped:
    """CISPO: REINFORCE with a truncated importance weight, so that no token loses its gradient.

        loss = -sg(min(r, max_ratio)) * A * logprobs

    Args:
        tokens: of a micro-batch.
        max_ratio: > 1.

    Returns:
        loss [B, T], and is_clipped [B, T]: where the weight was truncated.

    Source:
        MiniMax 2025, eq. 4, https://arxiv.org/abs/2506.13585, without a lower limit, as there in
        the experiments.
    """
    ratio = tokens.ratios().detach()
    weight = ratio.clamp(max=max_ratio)
    return -weight * tokens.advantages * tokens.logprobs, ratio > max_ratio


def sapo(tokens: PolicyTokens, *, tau_positive: float, tau_negative: float) -> LossAndClipped:
    """SAPO: a sigmoid gate in place of the clip.

        tau = tau_positive where A > 0, else tau_negative
        loss = -4 / tau * sigmoid(tau * (r - 1)) * A

    Args:
        tokens: of a micro-batch.
        tau_positive: > 0; larger closes the gate sooner.
        tau_negative: > 0.

    Returns:
        loss [B, T], and is_clipped [B, T], which is false everywhere: the gate only fades.

    Source:
        Gao et al. 2025, eq. 6, https://arxiv.org/abs/2511.20347
    """
    ratio = tokens.ratios()
    taus = torch.full_like(ratio, tau_negative).masked_fill(tokens.advantages > 0, tau_positive)
    loss = -4 / taus * torch.sigmoid(taus * (ratio - 1)) * tokens.advantages
    return loss, torch.zeros_like(tokens.loss_mask)


def dppo_tv(
    tokens: PolicyTokens, *, limit_low: float, limit_high: float, max_ratio: float
) -> LossAndClipped:
    """DPPO with the binary total variation: tokens that moved too far keep no gradient.

        D = |p - p_old|, p the probability of the token
        keep = not (A > 0 and p > p_old and D > limit_high)
               and not (A < 0 and p < p_old and D > limit_low)
        loss = -keep * sg(min(r, max_ratio)) * A * logprobs

    A ratio says little about an unlikely token, which may move from 1e-5 to 1e-4 without harm.

    Args:
        tokens: of a micro-batch.
        limit_low: in (0, 1), where the probability fell.
        limit_high: in (0, 1), where it rose.
        max_ratio: > 1, truncates the importance weight.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Qi et al. 2026, "Rethinking the Trust Region in LLM Reinforcement Learning",
        https://arxiv.org/abs/2602.04879, variant Binary-TV
    """
    distance = (tokens.logprobs.exp() - tokens.old_logprobs.exp()).abs()
    return _divergence_masked(tokens, distance, limit_low, limit_high, max_ratio)


def dppo_kl(
    tokens: PolicyTokens, *, limit_low: float, limit_high: float, max_ratio: float
) -> LossAndClipped:
    """DPPO with the binary KL divergence; see `dppo_tv`.

        D = p_old * log(p_old / p) + (1 - p_old) * log((1 - p_old) / (1 - p))

    Args:
        tokens: of a micro-batch.
        limit_low: > 0, in nats, where the probability fell.
        limit_high: > 0, in nats, where it rose.
        max_ratio: > 1, truncates the importance weight.

    Returns:
        loss [B, T] and is_clipped [B, T].

    Source:
        Qi et al. 2026, https://arxiv.org/abs/2602.04879, variant Binary-KL
    """
    logprobs, old = tokens.logprobs.detach(), tokens.old_logprobs
    p_old = old.exp()
    tiny = torch.finfo(logprobs.dtype).tiny
    # log(1 - p) without cancellation; where p rounds to 1 it is limited to log(tiny).
    rest, old_rest = ((-x.expm1()).clamp(min=tiny).log() for x in (logprobs, old))
    divergence = p_old * (old - logprobs) + (1 - p_old) * (old_rest - rest)
    return _divergence_masked(tokens, divergence, limit_low, limit_high, max_ratio)


def _divergence_masked(
    tokens: PolicyTokens, divergence: Tensor, low: float, high: float, max_ratio: float
) -> LossAndClipped:
    advantages, moved = tokens.advantages, tokens.logprobs - tokens.old_logprobs
    rose = (advantages > 0) & (moved > 0) & (divergence > high)
    fell = (advantages < 0) & (moved < 0) & (divergence > low)
    weight = tokens.ratios().detach().clamp(max=max_ratio)
    loss = -weight * advantages * tokens.logprobs
    return loss.masked_fill(rose | fell, 0.0), rose | fell


@dataclass(frozen=True)
class PolicyLoss:
    """An entry of `POLICY_LOSSES`.

    Attributes:
        function: (tokens, **hyperparameters) -> loss [B, T], is_clipped [B, T].
        is_of_sequence: whether all tokens of a response share one ratio, so that only an
            aggregation that counts sequences gives the published loss.
    """

    function: Callable[..., LossAndClipped]
    is_of_sequence: bool = False


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo_clip": PolicyLoss(ppo_clip),
    "dual_clip": PolicyLoss(dual_clip),
    "gspo": PolicyLoss(of_sequences.gspo, is_of_sequence=True),
    "gspo_token": PolicyLoss(of_sequences.gspo_token, is_of_sequence=True),
    "cispo": PolicyLoss(cispo),
    "sapo": PolicyLoss(sapo),
    "dppo_tv": PolicyLoss(dppo_tv),
    "dppo_kl": PolicyLoss(dppo_kl),
    "gmpo": PolicyLoss(of_sequences.gmpo, is_of_sequence=True),
}
