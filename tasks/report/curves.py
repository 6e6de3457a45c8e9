"""The curves of a training step that the report draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.store import read_jsonl

TITLES: Mapping[str, str] = {
    "loss": "Loss",
    "accuracy": "Pairs ranked right (fraction)",
    "reward_margin": "Reward margin, chosen over rejected",
    "reward": "Reward",
    "kl": "KL to the reference (nats per response)",
    "response_tokens": "Response length (tokens)",
    "logprob_gap": "Log-probability gap, sampler to trainer (nats)",
    "policy_entropy": "Entropy (nats per token)",
    "critic_loss": "Critic loss",
}
"""Metric without its stage -> what stands above its curve, in the order of the page."""


@dataclass(frozen=True)
class Curve:
    """One metric over the optimizer steps (or rounds) of a stage; finite values only.

    Attributes:
        name: as in `metrics.jsonl`, with the stage.
        title: what people read.
        steps: strictly as written.
        values: one per step.
    """

    name: str
    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def read_curves(stage: str, metrics_jsonl: Path) -> tuple[Curve, ...]:
    """Read the curves that `TITLES` names; those that the stage did not log are left out."""
    lines = read_jsonl(metrics_jsonl)
    curves = []
    for metric, title in TITLES.items():
        name = f"{stage}/{metric}"
        points = [(line["step"], line["metrics"].get(name)) for line in lines]
        kept = [(at, float(v)) for at, v in points if v is not None and math.isfinite(v)]
        if kept:
            steps, values = (tuple(column) for column in zip(*kept, strict=True))
            curves.append(Curve(name, title, steps, values))
    return tuple(curves)
