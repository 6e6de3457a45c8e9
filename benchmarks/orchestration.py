"""What a flow costs beside its stages: seconds per step, from a few steps to hundreds.

    python -m benchmarks orchestration [--steps 5 50 500] [--repeats 3]

A lifecycle of so many SFT steps, each from the policy of the one before. The stages are finished by
hand, so a run has nothing to train: its first run registers every result, the next ones find all of
them registered. Real Prefect and MLflow servers on SQLite; the flow runs in this process. Then one
result with two files of 1 GiB is registered, beside `cp` of the same files. Prints Markdown tables.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest import mock

import yaml
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import full_rlhf
from flows.config.presets import load_config
from flows.local_services.state import load_records
from stages.runtime.manifest import Manifest
from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from tasks.connections import Connections, connect
from tasks.registry import Registry
from tests.flows.finished import Finisher
from tests.flows.only_prefect import only_prefect
from tests.tasks.real_services import MlflowServer, finish_stage

NOBODY = "http://127.0.0.1:1"
GIB = 2**30


def run(arguments: Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, _services(Path(folder)) as mlflow:
        print("| steps | first run, s | s per step | again, s | s per step |")
        print("|---|---|---|---|---|")
        for steps in arguments.steps:
            first, again = _flow_seconds(
                Path(folder, f"n{steps}"), mlflow, steps, arguments.repeats
            )
            per_step = f"{first / steps:.2f} | {again:.1f} | {again / steps:.3f}"
            print(f"| {steps} | {first:.1f} | {per_step} |", flush=True)
        _print_registration(Path(folder), mlflow, arguments.repeats)


@contextmanager
def _services(folder: Path) -> Iterator[str]:
    """Start Prefect and MLflow; flows of this process report there."""
    (folder / "mlflow").mkdir()
    server = MlflowServer(folder / "mlflow")
    with only_prefect(folder / "home"):
        server.start()
        url = load_records(folder / "home").services["prefect"].url
        try:
            with temporary_settings({PREFECT_API_URL: url, PREFECT_HOME: folder / "client"}):
                yield server.uri
        finally:
            server.stop()


def _flow_seconds(folder: Path, mlflow: str, steps: int, repeats: int) -> tuple[float, float]:
    """Return the seconds of the first run of a lifecycle, and the median of the following ones."""
    folder.mkdir()
    preset = folder / "growing.yaml"
    preset.write_text(yaml.safe_dump(_preset(steps)))
    variables = {"RATCHET_STORE": str(folder), "RAY_ADDRESS": NOBODY, "MLFLOW_TRACKING_URI": mlflow}
    with mock.patch.dict("os.environ", variables):
        full_rlhf.steps(Finisher(load_config(str(preset)), connect(), None))
        times = [_seconds(str(preset)) for _ in range(1 + repeats)]
    return times[0], median(times[1:])


def _seconds(preset: str) -> float:
    started = time.perf_counter()
    full_rlhf.full_rlhf(preset)
    return time.perf_counter() - started


def _preset(steps: int) -> dict[str, object]:
    first = load_config("tiny").sft
    assert first is not None
    stages: dict[str, object] = {"step_1": {"sft": first.model_dump(mode="json")}}
    for number in range(2, steps + 1):
        data = {"name": "cafe", "size": 8, "seed": number}
        stages[f"step_{number}"] = {"sft": {"data": data}}
    return {"name": f"growing-{steps}", "steps": stages}


def _print_registration(folder: Path, mlflow: str, repeats: int) -> None:
    """Compare the registration of a result of 2 GiB with a copy of its files."""
    store = Store(folder / "large")
    registry = Connections(store, RayCluster(NOBODY), Registry(mlflow, store)).registry
    taken: dict[str, list[float]] = {"registered": [], "cp": []}
    for seed in range(repeats + 1):  # the first creates the registered model
        manifest = finish_stage(store, "sft", seed=seed, save=_write_two_gib)
        started = time.perf_counter()
        registry.register(manifest, lifecycle="large")
        taken["registered"].append(time.perf_counter() - started)
        taken["cp"].append(_copied(store, manifest, folder / "copy"))
        shutil.rmtree(store.artifact_dir(manifest))
    rows = {name: seconds[1:] for name, seconds in taken.items()}
    print("\n| 2 GiB | s |\n|---|---|")
    for name, seconds in rows.items():
        print(f"| {name} | {median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f}) |")


def _write_two_gib(folder: Path) -> None:
    for number in (1, 2):
        with (folder / f"model-0000{number}-of-00002.safetensors").open("wb") as file:
            for _ in range(64):
                file.write(bytes([number]) * (GIB // 64))


def _copied(store: Store, manifest: Manifest, target: Path) -> float:
    started = time.perf_counter()
    shutil.copytree(store.artifact_dir(manifest), target)
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds
