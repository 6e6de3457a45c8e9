"""Wins, losses and mean gain of one policy over another, from the rewards of their responses.

Imports no torch: the promotion counts each source of the prompts in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

PromptRewards = tuple[Sequence[float], Sequence[float]]
"""Rewards of our responses to one prompt, and of theirs."""


@dataclass(frozen=True)
class PairedRewards:
    """A comparison on prompts that both policies answered.

    Attributes:
        won: prompts on which more pairs of responses are won than lost.
        lost: prompts on which fewer are.
        tied: all others.
        gain: mean over prompts of our mean reward minus theirs.
    """

    won: int
    lost: int
    tied: int
    gain: float

    @property
    def judged(self) -> int:
        """Number of prompts."""
        return self.won + self.lost + self.tied


def pairs_of(
    ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]
) -> dict[str, PromptRewards]:
    """Return the rewards of both policies on the prompts that both answered.

    Args:
        ours: rewards by the id of the prompt.
        theirs: those of the other policy.
    """
    return {prompt: (ours[prompt], theirs[prompt]) for prompt in ours if prompt in theirs}


def count_wins(pairs: Iterable[PromptRewards]) -> PairedRewards:
    """Compare two policies prompt by prompt.

    Args:
        pairs: of at least one prompt, each with at least one reward on either side.
    """
    pairs = list(pairs)
    surplus = [sum((a > b) - (a < b) for a in one for b in other) for one, other in pairs]
    won, lost = sum(s > 0 for s in surplus), sum(s < 0 for s in surplus)
    gain = fmean(fmean(one) - fmean(other) for one, other in pairs)
    return PairedRewards(won, lost, len(pairs) - won - lost, gain)
