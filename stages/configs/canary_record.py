"""The canaries by name, and the result of one as a manifest keeps it; imports no torch.

A canary is a check before the first step of a stage, on the user's own model and rows.
`stages.canaries.table` has their functions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

CanaryName = Literal[
    "mask_audit",
    "single_bos",
    "padding_invariance",
    "split_invariance",
    "equal_reference",
    "weight_sync",
    "sampler_gap",
    "first_ratio",
    "first_kl",
]
SKIP_CANARIES = (
    "Checks before the first step that this stage leaves out, e.g. `padding_invariance` for an "
    "architecture that cannot be padded."
)

OF_SCORERS: tuple[CanaryName, ...] = ("single_bos", "padding_invariance", "split_invariance")
"""Canaries of every stage that trains a model on rows to score them."""
OF_POLICIES: tuple[CanaryName, ...] = ("mask_audit", *OF_SCORERS)
"""Canaries of every stage that trains a policy on rows."""


class CanaryRecord(BaseModel):
    """The result of a canary that passed.

    Attributes:
        name: its name.
        shows: what it verifies, in words.
        found: the measured number; at most `limit`.
        limit: the largest number that passes.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    shows: str
    found: float
    limit: float
