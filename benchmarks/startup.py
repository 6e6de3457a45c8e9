"""Start-up times of Ratchet's processes: stages, a flow, `ratchet --help`.

    python -m benchmarks startup [--repeats 5] [--beside <another checkout>]

Each stage is `python -m stages request.json` with very little work: 24 rows of the café, a policy
of 0.1M parameters, one thread. Two commands import only torch, or also transformers' model classes.
They are lower bounds, because every process that trains a transformers model imports these. Rows
with `forked` are stages of a fork server (`RATCHET_FORK_SERVER`), which the untimed first repeat
starts. All commands run one after the other, in this checkout and in the other one. Prints a
Markdown table of medians: wall-clock seconds and CPU seconds (user and system, including child
processes; of a forked stage as the log of its server tells).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
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


def run(arguments: Namespace) -> None:
    """Measure and print."""
    checkouts = [ROOT, *([arguments.beside.resolve()] if arguments.beside else [])]
    with tempfile.TemporaryDirectory() as folder:
        requests = _requests(Store(Path(folder, "store")))
        forked = {f"{name}, forked": name for name in requests}
        rows = [*COMMANDS, *requests, *forked]
        found: dict[tuple[str, Path], list[tuple[float, float]]] = {}
        for _ in range(arguments.repeats + 1):  # the first repeat fills the disk caches
            for row in rows:
                for checkout in checkouts:
                    servers = Path(folder, "servers") if row in forked else None
                    command = COMMANDS.get(row) or _stage(requests[forked.get(row, row)])
                    found.setdefault((row, checkout), []).append(_run(command, checkout, servers))
    head = "".join(f" {checkout.name}: wall | CPU |" for checkout in checkouts)
    print(f"| what |{head}\n|---|{'---|---|' * len(checkouts)}")
    for row in rows:
        cells = (_cells(found[row, checkout][1:]) for checkout in checkouts)
        print(f"| {row} |{''.join(cells)}")


def _requests(store: Store) -> Mapping[str, Path]:
    """Write requests of stages that have very little work."""
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


def _stage(request: Path) -> Sequence[str]:
    """Delete the results of earlier runs of the request, and return its command."""
    (request.parents[2] / "manifest.json").unlink(missing_ok=True)
    for path in request.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != request:
            path.unlink()
    return ("-m", "stages", str(request))


def _run(command: Sequence[str], checkout: Path, servers: Path | None) -> tuple[float, float]:
    """Run a command; return its wall-clock seconds and CPU seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
        "RATCHET_FORK_SERVER": str(servers or ""),
    }
    before = _forked_seconds(servers)
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise SystemExit(
                f"{command} failed with exit code {process.returncode}:\n{output.read().decode()}"
            )
    seconds = time.perf_counter() - began
    return seconds, usage.ru_utime + usage.ru_stime + _forked_seconds(servers) - before


def _forked_seconds(servers: Path | None) -> float:
    """Return the CPU seconds of all stages that have been forked so far."""
    logs = "".join(log.read_text() for log in servers.glob("*.log")) if servers else ""
    return sum(map(float, re.findall(r"after (\S+) s of CPU time", logs)))


def _cells(times: Sequence[tuple[float, float]]) -> str:
    walls, processor = zip(*times, strict=True)
    return f" {median(walls):.2f} | {median(processor):.2f} |"
