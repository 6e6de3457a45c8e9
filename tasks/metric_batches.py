"""The lines of a growing `metrics.jsonl` that are not copied yet, divided into requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One value of one curve; `at` is Unix time."""

    name: str
    value: float
    at: float
    step: int


class MetricBatch(NamedTuple):
    """Points for one request, and the last step that is completely copied after it."""

    points: list[Point]
    upto: int


def batches(
    lines: Sequence[Mapping[str, Any]], mirrored: int | None, *, is_complete: bool, size: int
) -> Iterator[MetricBatch]:
    """Yield the points of the steps after `mirrored`, in order.

    Args:
        lines: `{"step": int, "time": float, "metrics": {name: value}}`, steps never decreasing.
        mirrored: the last completely copied step; None before the first.
        is_complete: whether the file is complete. If not, the newest step is not copied yet,
            because another line of that step may follow and would then be skipped.
        size: points in a batch; a step may be divided, and is sent again after an interruption.
    """
    newest = lines[-1]["step"] if lines else 0
    points = [
        Point(name, float(value), line["time"], line["step"])
        for line in lines
        if (mirrored is None or line["step"] > mirrored) and (is_complete or line["step"] < newest)
        for name, value in line["metrics"].items()
    ]
    for start in range(0, len(points), size):
        batch, rest = points[start : start + size], points[start + size :]
        yield MetricBatch(batch, rest[0].step - 1 if rest else batch[-1].step)
