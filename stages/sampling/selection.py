"""Select responses of a group as training data: pure functions of scored rollouts.

A group has the rollouts of one prompt. All of them are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

from training_core.types import ScoredRollout

Group = Sequence[ScoredRollout]
ScoredPair = tuple[ScoredRollout, ScoredRollout]
T = TypeVar("T")


def best(group: Group) -> list[ScoredRollout]:
    """Best of n: the response with the highest reward; the first one if several are equal.

    Source:
        Nakano et al. 2021, https://arxiv.org/abs/2112.09332; as training data: Dong et al. 2023
        (RAFT), https://arxiv.org/abs/2304.06767
    """
    return [max(group, key=_reward)]


def top_k(group: Group, *, k: int) -> list[ScoredRollout]:
    """The k responses with the highest rewards, best first."""
    return sorted(group, key=_reward, reverse=True)[:k]


def threshold(group: Group, *, min_reward: float) -> list[ScoredRollout]:
    """Every response whose reward is at least `min_reward`.

    Source:
        Rejection-sampling fine-tuning, Yuan et al. 2023, https://arxiv.org/abs/2308.01825
    """
    return [s for s in group if s.reward >= min_reward]


def every(group: Group) -> list[ScoredRollout]:
    """Every response. With their rewards they are the data of conditional SFT."""
    return list(group)


SELECTIONS: dict[str, Callable[..., list[ScoredRollout]]] = {
    "best": best,
    "top_k": top_k,
    "threshold": threshold,
    "every": every,
}


def widest_pairs(group: Group, *, min_margin: float, at_most: int) -> list[ScoredPair]:
    """The pairs (better, worse) with the largest reward differences, the largest first.

    Args:
        group: scored rollouts of one prompt.
        min_margin: rewards must differ by more than this; equal rewards never form a pair.
        at_most: largest number of pairs; 1 gives the best response with the worst one.

    Source:
        One pair: Dong et al. 2024 (online RLHF), https://arxiv.org/abs/2405.07863; all pairs over
        a margin: Khaki et al. 2024 (RS-DPO), https://arxiv.org/abs/2402.10038
    """
    ordered = sorted(without_repeats(group, _text), key=_reward, reverse=True)
    pairs = [(a, b) for a, b in combinations(ordered, 2) if a.reward - b.reward > min_margin]
    return sorted(pairs, key=lambda pair: pair[1].reward - pair[0].reward)[:at_most]


def without_repeats(items: Sequence[T], identity: Callable[[T], object]) -> list[T]:
    """Keep only the first of all items with the same identity."""
    seen: dict[object, T] = {}
    for item in items:
        seen.setdefault(identity(item), item)
    return list(seen.values())


def _reward(item: ScoredRollout) -> float:
    return item.reward


def _text(item: ScoredRollout) -> str:
    return item.rollout.text
