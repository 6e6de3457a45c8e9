"""The curves of a training step that the report draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from stages.catalog import find_stage
from stages.files import read_jsonl


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
    """Read the curves that the stage's record names; those that it did not log are left out."""
    lines = read_jsonl(metrics_jsonl)
    curves = []
    for metric, title in find_stage(stage).curves.items():
        name = f"{stage}/{metric}"
        points = [(line["step"], line["metrics"].get(name)) for line in lines]
        kept = [(at, float(v)) for at, v in points if v is not None and math.isfinite(v)]
        if kept:
            steps, values = (tuple(column) for column in zip(*kept, strict=True))
            curves.append(Curve(name, title, steps, values))
    return tuple(curves)
