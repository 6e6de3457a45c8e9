"""The numbers of a lifecycle, from its newest report: what each step improved, and what it took.

    eval "$(ratchet env)" && python benchmarks/lifecycle.py tiny

Runs `prefect deployment run full-rlhf/<preset> --watch` twice first unless `--report-only` is
given, and prints the wall-clock time of both runs (the second one finds everything done) and a
Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("preset")
    parser.add_argument("--report-only", action="store_true")
    arguments = parser.parse_args()
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


if __name__ == "__main__":
    main()
