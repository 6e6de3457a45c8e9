"""Results and times of the steps of a lifecycle, from its newest report.

    eval "$(ratchet env)" && python -m benchmarks lifecycle tiny

First runs `prefect deployment run full-rlhf/<preset> --watch` twice and prints the wall-clock time
of both runs; the second run reuses all results of the first. With `--report-only` it skips these
runs. Then prints a Markdown table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any


def run(arguments: Namespace) -> None:
    """Run, measure and print."""
    if not arguments.report_only:
        for name in ("first", "second"):
            print(f"{name} run: {_run(arguments.preset):.0f} s")
    summary = _newest_summary(arguments.preset)
    print("\n| step | result | seconds |\n|---|---|---|")
    for row in summary["rows"]:
        print(f"| {row['step']} | {row['result']} | {row['seconds']:.0f} |")


def _run(preset: str) -> float:
    command = [
        sys.executable,
        "-m",
        "prefect",
        "deployment",
        "run",
        f"full-rlhf/{preset}",
        "--watch",
    ]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def _newest_summary(preset: str) -> dict[str, Any]:
    reports = Path(os.environ["RATCHET_STORE"], "reports")
    newest_first = sorted(
        reports.glob("*/summary.json"), key=lambda p: p.stat().st_mtime, reverse=True
    )
    summaries = (json.loads(path.read_text()) for path in newest_first)
    return next(s for s in summaries if s["lifecycle"] == preset)
