"""What a process of ours costs before it does anything: stages, a flow, `ratchet --help`.

    python -m benchmarks.startup [--repeats 5] [--beside <another checkout>]

Each stage is `python -m stages request.json` with next to nothing to do: 24 rows of the café, a
policy of 0.1M parameters, one thread. Two rows are for comparison, since no process that trains a
transformers model can take less: torch, and transformers' model classes. Every command runs in
turn with the others, in this checkout and in the other one. Prints a Markdown table of medians, as
seconds on the clock and seconds of the processor (user and system, children too).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stages.runtime.store import Store
from tests.stages.running import finish, write_request

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "intermediate_size": 64}
TRAINING = {"batch_size": 8, "max_tokens": 64}
CAFE = {"name": "cafe", "size": 24}
SFT = {"base": {"name": "scratch", **SIZES}, "data": CAFE, "chat_template": "roles"}
SAMPLING = {"prompts": {"name": "cafe", "size": 4}, "reward": {"name": "cafe"}, "group_size": 2}
COMMANDS = {
    "`import torch`": ("-c", "import torch"),
    "`import torch`, transformers' model classes": (
        "-c",
        "import torch; from transformers import AutoModelForCausalLM",
    ),
    "`import flows.full_rlhf`": ("-c", "import flows.full_rlhf"),
    "`ratchet --help`": ("-m", "flows.cli.main", "--help"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="a checkout to measure too")
    arguments = parser.parse_args()
    checkouts = [ROOT, *([arguments.beside.resolve()] if arguments.beside else [])]
    with tempfile.TemporaryDirectory() as folder:
        requests = _requests(Store(Path(folder, "store")))
        rows = [*COMMANDS, *requests]
        found: dict[tuple[str, Path], list[tuple[float, float]]] = {}
        for _ in range(arguments.repeats + 1):  # the first one fills the caches of the disk
            for row in rows:
                for checkout in checkouts:
                    command = COMMANDS.get(row) or ("-m", "stages", str(_fresh(requests[row])))
                    found.setdefault((row, checkout), []).append(_run(command, checkout))
    head = "".join(f" {checkout.name}: wall | CPU |" for checkout in checkouts)
    print(f"| what |{head}\n|---|{'---|---|' * len(checkouts)}")
    for row in rows:
        cells = (_cells(found[row, checkout][1:]) for checkout in checkouts)
        print(f"| {row} |{''.join(cells)}")


def _requests(store: Store) -> Mapping[str, Path]:
    """Requests of stages that have next to nothing to do."""
    sft: Mapping[str, Any] = {**SFT, "training": TRAINING}
    policy = finish(store, "sft", {**sft, "seed": 1})

    def sampling(engine: str) -> Path:
        rollouts = {"engine": engine, "max_response_tokens": 8, "max_tokens": 64}
        config = {**SAMPLING, "rollouts": rollouts, "keep_unfinished": True}
        return write_request(store, "rejection_sampling", config, {"policy": policy})

    parents = {"policy": policy, "reference": policy}
    dpo = write_request(store, "dpo", {"data": CAFE, "training": TRAINING}, parents)
    return {
        "stage `sft`": write_request(store, "sft", sft),
        "stage `dpo`": dpo,
        "stage `rejection_sampling`, transformers": sampling("transformers"),
        "stage `rejection_sampling`, vLLM": sampling("vllm"),
    }


def _fresh(request: Path) -> Path:
    """Forget what an earlier run of the request made."""
    (request.parents[2] / "manifest.json").unlink(missing_ok=True)
    for path in request.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != request:
            path.unlink()
    return request


def _run(command: Sequence[str], checkout: Path) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=checkout, env=environment, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise SystemExit(
                f"{command} ended with {process.returncode}:\n{output.read().decode()}"
            )
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def _cells(times: Sequence[tuple[float, float]]) -> str:
    walls, processor = zip(*times, strict=True)
    return f" {median(walls):.2f} | {median(processor):.2f} |"


if __name__ == "__main__":
    main()
