"""Rewards that are computed only from text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from training_core.data.cafe import true_reward
from training_core.rewards.reward import Unscored
from training_core.types import Rollout

_WORD = re.compile(r"[a-z']+")


def cafe_reward(rollouts: Sequence[Rollout]) -> list[float | Unscored]:
    """Score waiters' answers by the café's true reward; an unfinished answer scores 0."""
    return [
        true_reward(r.prompt.messages[-1]["content"], r.text) if r.is_finished else 0.0
        for r in rollouts
    ]


class LexiconReward:
    """Sentiment of the response by a lexicon of word valences.

        s = sum of the valences of the known words
        reward = s / sqrt(s^2 + 15), in (-1, 1)

    Args:
        valences: valence of each lower-case word, about -4 to 4.
        ignore: literal strings that are first removed from the response.

    Source:
        Normalisation of VADER: Hutto & Gilbert 2014, vaderSentiment.py `normalize`; without its
        rules for negation and emphasis.
    """

    def __init__(self, valences: Mapping[str, float], ignore: Sequence[str] = ()) -> None:
        self._valences = valences
        self._ignore = tuple(ignore)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        return [self.of_text(r.text) for r in rollouts]

    def of_text(self, text: str) -> float:
        """Score one text."""
        for literal in self._ignore:
            text = text.replace(literal, " ")
        total = sum(self._valences.get(word, 0.0) for word in _WORD.findall(text.lower()))
        return total / math.sqrt(total * total + 15)
