"""The curves of a training step that the report draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.catalog import find_stage
from stages.files import read_jsonl


@dataclass(frozen=True)
class Curve:
    """One metric over the optimizer steps (or rounds) of a stage; finite values only.

    Attributes:
        name: name in `metrics.jsonl`, with the stage.
        title: title for people, with the unit in brackets.
        x: what its steps count.
        steps: numbers of the steps, as in the file.
        values: one per step.
        low: lower ends of their confidence intervals, one per step; empty if they have none.
        high: upper ends.
    """

    name: str
    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    x: str = "optimizer step"

    @property
    def unit(self) -> str:
        """Unit of the values; what is measured if the title names none."""
        return self.title.partition("(")[2].rstrip(")") or self.title.partition(",")[0]


def read_curves(stage: str, metrics_jsonl: Path) -> tuple[Curve, ...]:
    """Read the curves that the stage's record names, except those without values.

    The metrics `<name>_low` and `<name>_high` are the interval of `<name>`.
    """
    lines = read_jsonl(metrics_jsonl)
    curves, record = [], find_stage(stage)
    x = "round" if {"reward", "kl"} <= record.curves.keys() else "optimizer step"
    for metric, title in record.curves.items():
        name = f"{stage}/{metric}"
        values = _points(lines, name)
        if not values:
            continue
        low, high = _points(lines, f"{name}_low"), _points(lines, f"{name}_high")
        if low.keys() == high.keys() == values.keys():
            ends = tuple(low.values()), tuple(high.values())
        else:
            ends = (), ()
        curves.append(Curve(name, title, tuple(values), tuple(values.values()), *ends, x))
    return tuple(curves)


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> dict[int, float]:
    """Return step -> finite value of a metric."""
    found = {line["step"]: line["metrics"].get(name) for line in lines}
    return {at: float(v) for at, v in found.items() if v is not None and math.isfinite(v)}
