"""What a reward model must show before a policy is optimised for it; imports no torch."""

from __future__ import annotations

from typing import Literal

from stages.configs.block import Block, operational

RuleName = Literal["length", "format"]
NullName = Literal["empty", "repeated", "truncated"]


class AdmissionConfig(Block):
    """The bar of a reward model. All comparisons use the lower bound of a 95 % interval."""

    required: bool = operational(
        True,
        "Stop before a stage that optimises for a reward model below the bar; false only logs it.",
    )
    min_accuracy: float = operational(
        0.5, "The lower bound of the held-out accuracy must be above it.", ge=0, lt=1
    )
    beats_rules: tuple[RuleName, ...] = operational(
        ("length", "format"),
        "Rules without a model that it must beat: on the held-out pairs where the two disagree, it "
        "must be right more often than not, beyond chance. `length` prefers the longer (or the "
        "shorter) response, `format` the one with more (or less) markup.",
    )
    beats_responses: tuple[NullName, ...] = operational(
        ("empty", "repeated", "truncated"),
        "Spoiled copies of the chosen responses that it must score lower more often than not, "
        "beyond chance: nothing, the response twice, its first half.",
    )
