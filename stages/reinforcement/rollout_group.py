"""The group of a prompt, which all parts of a round of PPO handle."""

from __future__ import annotations

from dataclasses import dataclass

from training_core.types import ScoredRollout


@dataclass(frozen=True)
class RolloutGroup:
    """The scored responses to one prompt.

    Attributes:
        scored: sampled responses; those without a reward are missing.
        greedy: the greedy response, if the advantages use it.
    """

    scored: tuple[ScoredRollout, ...]
    greedy: ScoredRollout | None = None
