"""The demo of a test run: made by the process that needs it first, and used by all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

RATCHET = (sys.executable, "-m", "flows.cli.main")
OUTSIDE = {"PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "OMP_NUM_THREADS"}


@dataclass(frozen=True)
class FinishedDemo:
    """How `ratchet demo` ended.

    Attributes:
        code: exit code.
        output: what it printed.
        environment: of a shell after `eval "$(ratchet env)"`.
        runs: ids of the flow runs that have made a report.
    """

    code: int
    output: str
    environment: dict[str, str]
    runs: list[str]


def finished_demo(home: Path) -> FinishedDemo:
    """Run the demo in `home`, or return the one that another process of this run has made."""
    record = _shared("demo.json")
    with FileLock(record.with_suffix(".lock")):
        if not record.exists():
            _shared("home").write_text(str(home))
            record.write_text(json.dumps(asdict(_demo(home))))
    return FinishedDemo(**json.loads(record.read_text()))


def stop_services() -> None:
    """Stop the services of the demo, if it was started."""
    home = _shared("home")
    if home.exists():
        _printed("down", _environment(Path(home.read_text())))


def _shared(name: str) -> Path:
    return Path(os.environ["RATCHET_TESTS_SHARED"], name)


def _demo(home: Path) -> FinishedDemo:
    environment = _environment(home)
    demo = _printed("demo", environment)
    exported = re.findall(
        r"^export (\w+)='?(.*?)'?$", _printed("env", environment).stdout, re.MULTILINE
    )
    runs = [page.parent.name for page in home.glob("store/reports/*/report.html")]
    output = f"{demo.stdout}\n{demo.stderr}"
    return FinishedDemo(demo.returncode, output, {**environment, **dict(exported)}, runs)


def _environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in OUTSIDE}
    return {**inherited, "RATCHET_HOME": str(home), "COLUMNS": "160"}


def _printed(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*RATCHET, command), env=environment, capture_output=True, text=True, check=False
    )
