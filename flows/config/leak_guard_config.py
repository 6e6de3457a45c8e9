"""How the prompts that judge are compared with the data that trained."""

from __future__ import annotations

from stages.configs.block import Block, operational


class LeakGuardConfig(Block):
    """Limits on prompts of the evaluation that are also in training data; no result depends on it.

    It compares before the first step, with all data of the preset, and of the models it starts
    from.
    """

    max_same_share: float = operational(
        0.0,
        "Share of the evaluation's prompts that may also be in training data, word for word.",
        ge=0,
        le=1,
    )
    similarity: float | None = operational(
        0.9,
        "Prompts are near duplicates if they share at least this fraction of all sequences of 5 "
        "characters (Jaccard similarity); null looks only for the same words.",
        gt=0,
        le=1,
    )
    max_near_share: float = operational(
        0.01,
        "Share of the evaluation's prompts that may have a near duplicate in training data.",
        ge=0,
        le=1,
    )
