"""Stages as real processes: what they exit with, and that being killed changes nothing."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.files import read_jsonl
from stages.runtime.store import Request, Store
from tests.stages.forked import StageProcess
from training_core.checkpoint import complete_checkpoints

ROOT = Path(__file__).resolve().parents[2]
STEPS = 125  # 200 rows * 5 epochs / 8 rows; about a second
SFT = {
    "base": {
        "name": "scratch",
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 64,
    },
    "data": {"name": "cafe", "size": 200},
    "chat_template": "roles",
    "training": {
        "epochs": 5,
        "batch_size": 8,
        "max_tokens": 64,
        "save_every_steps": 10,
        "optimizer": {"learning_rate": 5e-3},
    },
}


def type_it(request: Path) -> subprocess.Popen:
    """Start a stage as a Ray job does."""
    return subprocess.Popen(
        [sys.executable, "-m", "stages", str(request)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_step(process: StageProcess | subprocess.Popen, attempt: Path, step: int) -> None:
    """Wait until the stage has done `step` optimizer steps."""
    deadline = time.monotonic() + 60
    progress = attempt / "progress.json"
    while not (progress.exists() and json.loads(progress.read_text())["done"] >= step):
        assert process.poll() is None, f"it ended with {process.returncode} before step {step}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def error_of(request: Path) -> dict:
    return json.loads(request.with_name("error.json").read_text())


# ------------------------------------------------------------------ requests that cannot be served


def spoiled(store: Store, write_request: Callable[..., Path], **changes) -> Path:
    path = write_request(store, "sft", SFT)
    request = Request.model_validate_json(path.read_bytes())
    path.write_text(request.model_copy(update=changes).model_dump_json())
    return path


def test_a_bad_config_exits_20_and_says_what_is_wrong(store, write_request):
    path = spoiled(store, write_request, config={**SFT, "training": {"learning_rat": 1}})
    assert type_it(path).wait(timeout=300) == 20
    assert error_of(path)["kind"] == "ConfigError"
    assert "training.learning_rat: unknown key" in error_of(path)["message"]


def test_an_unknown_stage_exits_20_and_names_the_nearest(store, write_request):
    path = spoiled(store, write_request, stage="stf")
    assert type_it(path).wait(timeout=300) == 20
    assert error_of(path) == {
        "code": 20,
        "kind": "ConfigError",
        "message": "unknown stage 'stf'; did you mean 'sft'?",
    }


def test_a_request_that_is_not_one_exits_20(tmp_path, run_here):
    path = tmp_path / "stages" / "sft" / "k" / "attempts" / "a1" / "request.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"stage": "sft"')
    assert run_here(path) == 20
    assert error_of(path)["kind"] == "IntegrityError"


def test_a_data_error_exits_20_and_a_config_that_contradicts_itself_too(
    store, write_request, run_here
):
    gone = {**SFT, "data": {"name": "files", "path": str(store.root / "gone.jsonl")}}
    path = write_request(store, "sft", gone)
    assert run_here(path) == 20
    assert error_of(path)["kind"] == "DataError"
    path = write_request(store, "sft", {**SFT, "data": None})
    assert run_here(path) == 20
    assert error_of(path)["kind"] == "ConfigError"


def test_rows_that_are_all_too_long_are_a_data_error(store, write_request, run_here):
    path = write_request(store, "sft", {**SFT, "training": {"max_tokens": 8}})
    assert run_here(path) == 20
    assert "longer than max_tokens=8" in error_of(path)["message"]


def test_a_loss_that_overflows_exits_30_and_keeps_no_manifest(store, write_request, run_here):
    wild = {"learning_rate": 1e30, "schedule": "constant", "max_grad_norm": 1e30}
    training = {**SFT["training"], "epochs": 1, "optimizer": wild}
    path = write_request(store, "sft", {**SFT, "training": training})
    assert run_here(path) == 30
    assert error_of(path)["kind"] == "NonFiniteError"
    assert "step" in error_of(path)["message"]
    assert store.manifests() == []


# ------------------------------------------------------------------ kills


@dataclass(frozen=True)
class Killed:
    """One stage key that was killed twice and then finished, and one that was left in peace."""

    store: Store
    request: Path
    exit_codes: dict[str, int]
    steps_saved: dict[str, int]
    undisturbed: Path


@pytest.fixture(scope="module")
def killed(tmp_path_factory, write_request, run_here) -> Killed:
    store = Store(tmp_path_factory.mktemp("killed"))
    peaceful = Store(tmp_path_factory.mktemp("peaceful"))
    codes, saved = {}, {}
    first = write_request(store, "sft", SFT, attempt="a1")
    process = StageProcess(first)
    wait_for_step(process, first.parent, 25)
    process.send_signal(signal.SIGKILL)
    codes["a1 killed"] = process.wait()
    saved["a1"] = complete_checkpoints([first.parent / "checkpoints"])[0].step

    second = write_request(store, "sft", SFT, attempt="a2")
    process = StageProcess(second)
    wait_for_step(process, second.parent, 60)
    process.send_signal(signal.SIGTERM)
    codes["a2 terminated"] = process.wait(timeout=300)
    saved["a2"] = complete_checkpoints([second.parent / "checkpoints"])[0].step
    codes["a2 again"] = run_here(second)
    undisturbed = write_request(peaceful, "sft", SFT)
    codes["undisturbed"] = run_here(undisturbed)
    return Killed(store, second, codes, saved, undisturbed)


def artifact(request: Path) -> dict[str, torch.Tensor]:
    return load_file(request.parent / "artifact" / "model.safetensors")


def test_a_stage_that_is_asked_to_stop_saves_and_exits_143(killed):
    assert killed.exit_codes["a1 killed"] == -signal.SIGKILL
    assert killed.exit_codes["a2 terminated"] == 143
    assert killed.steps_saved["a1"] in (20, 30)  # the last multiple of 10
    assert 60 <= killed.steps_saved["a2"] < STEPS  # the very step that it was at
    assert error_of(killed.request)["kind"] == "StoppedError"


def test_the_final_weights_are_those_of_a_run_that_was_never_killed_bit_for_bit(killed):
    assert killed.exit_codes["undisturbed"] == killed.exit_codes["a2 again"] == 0
    expected, found = artifact(killed.undisturbed), artifact(killed.request)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    key = killed.request.parents[2].name
    manifest = killed.store.find("sft", key)
    assert manifest is not None
    assert manifest.attempt == "a2"
    peaceful = Store(killed.undisturbed.parents[5]).find("sft", key)
    assert peaceful is not None
    assert manifest.digest == peaceful.digest
    assert manifest.metrics == peaceful.metrics


def test_the_resumed_curve_is_whole_and_the_same(killed):
    curves = [
        [(line["step"], line["metrics"]) for line in read_jsonl(r.parent / "metrics.jsonl")]
        for r in (killed.undisturbed, killed.request)
    ]
    assert [step for step, _ in curves[1]] == list(range(1, STEPS + 1))
    assert curves[0] == curves[1]


def test_a_later_attempt_loses_the_race_and_changes_nothing(killed, write_request, run_here):
    manifest = killed.request.parents[2] / "manifest.json"
    before = (manifest.read_bytes(), manifest.stat().st_mtime_ns)
    third = write_request(killed.store, "sft", SFT, attempt="a3")
    assert run_here(third) == 10
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == before
    (found,) = killed.store.manifests()
    killed.store.verify(found)


def test_an_earlier_attempt_is_read_and_never_written(killed):
    first = killed.request.parents[1] / "a1"
    steps = [c.step for c in complete_checkpoints([first / "checkpoints"])]
    assert steps[0] == killed.steps_saved["a1"]
    last = read_jsonl(first / "metrics.jsonl")[-1]["step"]
    assert 25 <= last < 60
    assert not (first / "artifact").exists()


def test_a_heartbeat_and_the_progress_are_there(killed):
    beat = json.loads((killed.request.parents[1] / "a1" / "heartbeat.json").read_text())
    assert beat["pid"] != os.getpid()
    assert time.time() - beat["time"] < 300
    progress = json.loads((killed.request.parent / "progress.json").read_text())
    assert (progress["done"], progress["total"]) == (STEPS, STEPS)


# ------------------------------------------------------------------ a full disk

NO_SAVES = {**SFT, "training": {**SFT["training"], "epochs": 1, "save_every_steps": 1000}}


def test_a_full_disk_under_the_artifact_exits_40_and_publishes_nothing(store, write_request):
    request = write_request(store, "sft", NO_SAVES)
    process = type_it(request)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (32 * 1024,) * 2)  # the weights have 50
    assert process.wait(timeout=300) == 40
    assert error_of(request)["kind"] == "StorageFullError"
    assert store.manifests() == []


def test_asked_for_help_it_says_what_it_takes_and_writes_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "stages", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "request.json" in done.stdout
    assert list(tmp_path.iterdir()) == []
