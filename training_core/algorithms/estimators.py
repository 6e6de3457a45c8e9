"""Advantage estimators, and the table that names them. Shapes: B sequences, T tokens.

Each estimator turns the rewards of a round into an advantage per token. Where the KL to the
reference is part of the reward, it is part of every estimator's token rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from training_core.algorithms import group_baselines as baselines
from training_core.algorithms import reward_shaping
from training_core.algorithms.advantages import gae, returns_to_go, token_rewards
from training_core.algorithms.masking import whiten


@dataclass(frozen=True)
class RoundRewards:
    """What an advantage estimator sees of a round.

    Attributes:
        rewards: [B] reward of each response.
        groups: [B] int64, number of each response's group.
        kl: [B, T] nats; zero if the KL is no part of the reward.
        kl_coef: reward per nat that is subtracted.
        loss_mask: [B, T] bool; a row without a token gets no advantage, but its reward counts in
            the baseline of its group.
        values: [B, T] value before each token; only with a critic.
        end_values: [B] value after the last token, 0 where the episode ended; None is 0.
        greedy_rewards: [B] reward of the greedy response to the same prompt.
        parts: [R, B] values of the R parts of each reward, if the reward is a weighted sum.
        part_weights: [R] their weights.
    """

    rewards: Tensor
    groups: Tensor
    kl: Tensor
    kl_coef: float
    loss_mask: Tensor
    values: Tensor | None = None
    end_values: Tensor | None = None
    greedy_rewards: Tensor | None = None
    parts: Tensor | None = None
    part_weights: Tensor | None = None

    def per_token(self) -> Tensor:
        """Return the token rewards [B, T]: -kl_coef * KL, and the reward at the last token."""
        return token_rewards(self.rewards, self.kl, self.loss_mask, kl_coef=self.kl_coef)


Advantages = tuple[Tensor, Tensor]
"""Advantages [B, T], and returns [B, T], which are the targets of the critic if there is one."""


def critic_gae(rewards: RoundRewards, *, gamma: float, gae_lambda: float) -> Advantages:
    """PPO's estimator: GAE with a critic, then mean 0 and variance 1 over all tokens of the round.

        A = whiten(GAE(token rewards, values))

    Args:
        rewards: with values.
        gamma: in [0, 1].
        gae_lambda: in [0, 1].

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Schulman et al. 2016, https://arxiv.org/abs/1506.02438; normalisation: Huang et al. 2024,
        https://arxiv.org/abs/2403.17031, section 3.
    """
    mask = rewards.loss_mask
    advantages, returns = gae(
        rewards.per_token(),
        _given(rewards.values, "values of a critic"),
        mask,
        rewards.end_values,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    return whiten(advantages, mask), returns


def reinforce_pp(rewards: RoundRewards, *, gamma: float) -> Advantages:
    """REINFORCE++: the return of each token, normalised over all tokens of the round.

        A = whiten(sum_{s >= t} gamma^(s-t) * r_s)

    Args:
        rewards: of groups of any size.
        gamma: in [0, 1].

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Hu et al. 2025, eq. 7 and 8, https://arxiv.org/abs/2501.03262
    """
    returns = returns_to_go(rewards.per_token(), rewards.loss_mask, gamma=gamma)
    return whiten(returns, rewards.loss_mask), returns


def reinforce_pp_baseline(rewards: RoundRewards) -> Advantages:
    """REINFORCE++ with the group's mean reward as baseline; normalised over the round.

        A = whiten(return of (r - mean(r of the group)))

    Args:
        rewards: of groups of at least 2.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Hu et al. 2025, section 3.3, https://arxiv.org/abs/2501.03262. The mean includes the
        response itself, as in the paper and OpenRLHF.
    """
    returns = _returns_of(rewards, baselines.minus_group_mean(rewards.rewards, rewards.groups))
    return whiten(returns, rewards.loss_mask), returns


def rloo(rewards: RoundRewards) -> Advantages:
    """RLOO: the reward minus the mean of the other responses of the group.

        A = return of (r_i - mean(r_j, j != i)); not normalised

    Args:
        rewards: of groups of at least 2.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Ahmadian et al. 2024, eq. 9, https://arxiv.org/abs/2402.14740. The KL is charged token by
        token (as in OpenRLHF), not summed into the reward before the baseline (as in TRL).
    """
    returns = _returns_of(rewards, baselines.minus_others_mean(rewards.rewards, rewards.groups))
    return returns, returns


def grpo(rewards: RoundRewards, *, std_epsilon: float) -> Advantages:
    """GRPO: the reward in standard deviations from the mean of the group.

        A = return of ((r - mean(r of the group)) / (std(r of the group) + std_epsilon))

    Args:
        rewards: of groups of at least 2; equal rewards give advantages of 0.
        std_epsilon: > 0, in units of the reward.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Shao et al. 2024 (DeepSeekMath), section 4.1.2, https://arxiv.org/abs/2402.03300; std with
        Bessel's correction, as in TRL, verl and OpenRLHF.
    """
    centred = baselines.minus_group_mean(rewards.rewards, rewards.groups)
    stds = baselines.group_stds(rewards.rewards, rewards.groups)
    returns = _returns_of(rewards, centred / (stds + std_epsilon))
    return returns, returns


def dr_grpo(rewards: RoundRewards) -> Advantages:
    """Dr. GRPO: the reward minus the mean of the group, not divided by its deviation.

        A = return of (r - mean(r of the group))

    Its other half is the aggregation `constant_length`.

    Args:
        rewards: of groups of at least 2.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Liu et al. 2025, section 3.2, https://arxiv.org/abs/2503.20783
    """
    returns = _returns_of(rewards, baselines.minus_group_mean(rewards.rewards, rewards.groups))
    return returns, returns


def gdpo(rewards: RoundRewards, *, std_epsilon: float) -> Advantages:
    """GDPO: each part of the reward in standard deviations from its mean in the group.

        A = return of whiten(sum_k w_k * (r_k - mean(r_k)) / (std(r_k) + std_epsilon))

    The deviations are those of a group, and those of `whiten` are of all responses of the round.

    Args:
        rewards: with the parts and their weights; of groups of at least 2.
        std_epsilon: > 0, in units of each part.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Liu et al. 2026, section 3, https://arxiv.org/abs/2601.05242
    """
    relative = reward_shaping.gdpo(
        _given(rewards.parts, "the parts of each reward"),
        _given(rewards.part_weights, "the weights of the parts"),
        rewards.groups,
        std_epsilon=std_epsilon,
    )
    returns = _returns_of(rewards, relative)
    return returns, returns


def remax(rewards: RoundRewards) -> Advantages:
    """ReMax: the reward minus that of the greedy response to the same prompt; not normalised.

        A = return of (r - r_greedy)

    Args:
        rewards: with greedy rewards; of groups of any size.

    Returns:
        advantages [B, T] and returns [B, T].

    Source:
        Li et al. 2024, algorithm 2, https://arxiv.org/abs/2310.10505
    """
    greedy = _given(rewards.greedy_rewards, "rewards of greedy responses")
    returns = _returns_of(rewards, rewards.rewards - greedy)
    return returns, returns


def _returns_of(rewards: RoundRewards, relative: Tensor) -> Tensor:
    """Undiscounted returns [B, T] with the relative rewards [B] in place of the rewards."""
    per_token = replace(rewards, rewards=relative).per_token()
    return returns_to_go(per_token, rewards.loss_mask, gamma=1.0)


def _given(values: Tensor | None, what: str) -> Tensor:
    if values is None:
        raise ValueError(f"expected {what}, found none; the table ADVANTAGES says who needs them")
    return values


@dataclass(frozen=True)
class AdvantageEstimator:
    """An entry of `ADVANTAGES`.

    Attributes:
        function: (rewards, **hyperparameters) -> advantages, returns.
        needs_critic: whether it uses the values of a critic.
        needs_group: whether every group must have at least 2 responses.
        needs_greedy: whether it uses the reward of a greedy response per prompt.
        needs_parts: whether it uses the parts of a weighted reward.
    """

    function: Callable[..., Advantages]
    needs_critic: bool = False
    needs_group: bool = False
    needs_greedy: bool = False
    needs_parts: bool = False


ADVANTAGES: dict[str, AdvantageEstimator] = {
    "gae": AdvantageEstimator(critic_gae, needs_critic=True),
    "reinforce_pp": AdvantageEstimator(reinforce_pp),
    "reinforce_pp_baseline": AdvantageEstimator(reinforce_pp_baseline, needs_group=True),
    "rloo": AdvantageEstimator(rloo, needs_group=True),
    "grpo": AdvantageEstimator(grpo, needs_group=True),
    "dr_grpo": AdvantageEstimator(dr_grpo, needs_group=True),
    "gdpo": AdvantageEstimator(gdpo, needs_group=True, needs_parts=True),
    "remax": AdvantageEstimator(remax, needs_greedy=True),
}
