"""The real small things that these tests use: an MLflow server, a checkpoint, racing processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from stages.runtime.manifest import Manifest, record_files
from stages.runtime.store import Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from tasks.registry import Registry

START_SECONDS = 120


class MlflowServer:
    """An MLflow server on sqlite below `folder`, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | quiet,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text())
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.uri}/health", timeout=1).is_success
        except httpx.TransportError:
            return False


def tiny_llama(seed: int):
    """A one-layer Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def finish_stage(
    store: Store,
    step: str,
    *,
    seed: int = 0,
    kind: str = "policy",
    files: Mapping[str, str] | None = None,
    save: Callable[[Path], object] | None = None,
    **fields: object,
) -> Manifest:
    """Finish a stage by hand: its artifact and its manifest.

    A model gets tiny weights, which the seed makes different, or what `save` writes; anything else
    gets the files.
    """
    draft = {
        "stage": step.split("-", maxsplit=1)[0],
        "step": step,
        "version": 1,
        "attempt": "a1",
        "kind": kind,
        "key": f"{seed:04d}{uuid.uuid5(uuid.NAMESPACE_OID, step).hex}".ljust(64, "0"),
        "config": {"seed": seed, "training": {"batch_size": 8}},
        "input_digests": {},
        "parents": {},
        "metrics": {},
        "environment": {},
        "cost": {},
        "finished_at": time.time(),
    } | fields
    artifact = store.attempt(draft["stage"], draft["key"], draft["attempt"]).artifact
    artifact.mkdir(parents=True)
    if save is not None:
        save(artifact)
    elif kind in ("policy", "reward_model"):
        tiny_llama(seed).save_pretrained(artifact)
    else:
        for name, text in (files or {"rows.jsonl": f'{{"seed": {seed}}}\n'}).items():
            (artifact / name).write_text(text)
    recorded, digest = record_files(artifact)
    manifest = Manifest(files=recorded, digest=digest, **draft)
    assert store.publish(manifest)
    return manifest


def client_of(registry: Registry) -> MlflowClient:
    """What a user of MLflow sees, past our own door."""
    from mlflow import MlflowClient

    return MlflowClient(registry.mlflow.tracking_uri, registry.mlflow.tracking_uri)


def runs_of(registry: Registry, lifecycle: str) -> list[Run]:
    """All runs of a lifecycle, oldest first."""
    client = client_of(registry)
    experiment = client.get_experiment_by_name(lifecycle)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], order_by=["start_time ASC"]))


def write_curve(path: Path, steps: range) -> None:
    with path.open("a") as file:
        for step in steps:
            metrics = {"sft/loss": 4.0 / (step + 1), "sft/tokens": 128}
            line = {"step": step, "time": 1000.0 + step, "metrics": metrics}
            file.write(json.dumps(line) + "\n")


def steps_of(registry: Registry, run_id: str, name: str = "sft/loss") -> list[int]:
    return [point.step for point in client_of(registry).get_metric_history(run_id, name)]


def run_together(function: Callable[..., Any], arguments: Sequence[tuple]) -> list[Any]:
    """Run `function(barrier, *arguments)` in one process each, and return what they returned."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(arguments), timeout=60), context.SimpleQueue()
    processes = [
        context.Process(target=_report, args=(results, function, barrier, *each))
        for each in arguments
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)
    return [results.get() for _ in processes]


def _report(results: Any, function: Callable[..., Any], *arguments: Any) -> None:
    results.put(function(*arguments))
