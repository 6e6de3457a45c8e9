"""Curves and progress as files in the attempt directory.

The task that follows the stage reads them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from stages.attempt import Attempt
from stages.files import read_jsonl, write_json
from training_core.errors import IntegrityError


class FileSink:
    """Writes `metrics.jsonl` (one line per step) and `progress.json`.

    Args:
        attempt: the files are written into its directory.
        stage: put before each metric's name, e.g. `ppo/reward`.
    """

    def __init__(self, attempt: Attempt, stage: str) -> None:
        self._stage = stage
        self._metrics = attempt.metrics
        self._progress = attempt.progress

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line; see `MetricSink`."""
        named = {f"{self._stage}/{name}": value for name, value in metrics.items()}
        line = json.dumps({"step": step, "time": time.time(), "metrics": named})
        with self._metrics.open("a") as file:
            file.write(line + "\n")

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Replace the progress file; see `MetricSink`."""
        write_json(self._progress, {"done": done, "total": total, "text": text})

    def rewind(self, history: Path, step: int) -> None:
        """Start the curves with what `history` has up to `step`.

        So the curve of a resumed run is complete.
        """
        lines = [line for line in read_jsonl(history) if _step_of(line, history) <= step]
        self._metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _step_of(line: Mapping[str, object], history: Path) -> int:
    step = line.get("step")
    if not isinstance(step, int):
        raise IntegrityError(
            f"{history}: expected a number as `step` of each line, found {line!r:.80}; "
            "remove that line"
        )
    return step


class NullSink:
    """Writes nothing; the sink of all ranks except the first."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Do nothing."""

    def rewind(self, history: Path, step: int) -> None:
        """Do nothing."""
