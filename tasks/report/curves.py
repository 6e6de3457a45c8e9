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
        name: name in `metrics.jsonl`, with the stage.
        title: title for people.
        steps: numbers of the steps, as in the file.
        values: one per step.
    """

    name: str
    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


def read_curves(stage: str, metrics_jsonl: Path) -> tuple[Curve, ...]:
    """Read the curves that the stage's record names, except those without values."""
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
