"""Token rewards and advantage estimation. Shapes: B sequences, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(rewards: Tensor, kl: Tensor, loss_mask: Tensor, *, kl_coef: float) -> Tensor:
    """Convert a reward per response to rewards per token.

    Each token gets -kl_coef * KL, and the last token also gets the reward itself.

    Args:
        rewards: [B] reward of each response.
        kl: [B, T] nats.
        loss_mask: [B, T] bool, true on response tokens; every row has at least one.
        kl_coef: >= 0, penalty per nat.

    Returns:
        [B, T], zero outside the mask.

    Source:
        Ouyang et al. 2022 (InstructGPT), eq. 2, https://arxiv.org/abs/2203.02155
    """
    positions = torch.arange(loss_mask.shape[1], device=loss_mask.device)
    last = (loss_mask * positions).argmax(dim=1)
    per_token = (-kl_coef * kl).masked_fill(~loss_mask, 0.0)
    return per_token.scatter_add(1, last[:, None], rewards[:, None].to(per_token.dtype))


def returns_to_go(rewards: Tensor, loss_mask: Tensor, *, gamma: float) -> Tensor:
    """Discounted sum of the rewards from each token on, only over the masked tokens.

        G_t = r_t + gamma * G_{t+1}

    As in `gae`, t + 1 is the next masked token.

    Args:
        rewards: [B, T] token rewards.
        loss_mask: [B, T] bool.
        gamma: in [0, 1].

    Returns:
        [B, T], zero outside the mask.

    Source:
        Sutton & Barto 2018, eq. 3.9; it is `gae` with lambda 1 and all values 0.
    """
    return gae(rewards, torch.zeros_like(rewards), loss_mask, gamma=gamma, gae_lambda=1.0)[0]


def gae(
    rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    end_values: Tensor | None = None,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, only over the masked tokens.

        delta_t = r_t + gamma * V_{t+1} - V_t
        A_t     = delta_t + gamma * lambda * A_{t+1}
        R_t     = A_t + V_t

    t + 1 is the *next masked* token. Other tokens (e.g. a tool's output) are skipped: they cause no
    discount and no bootstrap. After the last masked token A is 0, and V is `end_values`.

    Args:
        rewards: [B, T] token rewards.
        values: [B, T] value before each token.
        loss_mask: [B, T] bool.
        end_values: [B] value after the last masked token: 0 where the episode ended, the critic's
            value where the token limit cut the response and the episode would have gone on. None
            is 0 everywhere, i.e. the end of a response is the end of its episode.
        gamma: in [0, 1].
        gae_lambda: in [0, 1].

    Returns:
        advantages [B, T] and returns [B, T], zero outside the mask.

    Source:
        Schulman et al. 2016, eq. 16, https://arxiv.org/abs/1506.02438; bootstrapping of cut
        episodes: Pardo et al. 2018, section 3, https://arxiv.org/abs/1712.00378
    """
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0]) if end_values is None else end_values
    next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        here = loss_mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        next_advantage = torch.where(here, advantage, next_advantage)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, advantage, 0.0)
    returns = (advantages + values).masked_fill(~loss_mask, 0.0)
    return advantages, returns
