"""A stage as several processes: one result, one end."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_stage_process import SFT, wait_for_step

from stages.files import read_jsonl
from stages.runtime.exit_codes import ExitCode
from stages.runtime.forked_stage import FOLDER_VARIABLE
from stages.runtime.store import Store
from stages.runtime.worker_processes import rank_environment
from stages.runtime.workers import exit_code_of, supervise
from tests.stages.fork_servers import ForkServers
from tests.stages.forked import StageProcess
from training_core.checkpoint import complete_checkpoints

pytestmark = pytest.mark.slow

STEPS = 50  # 200 rows * 2 epochs / 8 rows
SINGLE_PROCESS = {
    **SFT,
    "eval_data": {"name": "cafe", "split": "heldout", "size": 20},
    "training": {
        **SFT["training"],
        "epochs": 2,
        "ema_decay": 0.9,
        "eval_every_steps": 10,
        "best_metric": {"metric": "heldout_loss"},
        "keep_checkpoints": 1,
    },
}
WORKERS = {"num_workers": 2}
ENGINES = {
    "torch": {"name": "torch"},
    "zero-3": {"name": "deepspeed", "zero_stage": 3},
}


def with_engine(engine: str) -> dict[str, Any]:
    return {**SINGLE_PROCESS, "training": {**SINGLE_PROCESS["training"], "engine": ENGINES[engine]}}


def curve(request: Path) -> list[tuple[int, float]]:
    lines = read_jsonl(request.parent / "metrics.jsonl")
    return [(line["step"], line["metrics"]["sft/loss"]) for line in lines]


@pytest.fixture(scope="module")
def forking():
    """The variable with which a stage has its workers forked."""
    servers = ForkServers()
    yield {FOLDER_VARIABLE: str(servers.folder)}
    servers.close()


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory, write_request, run_here):
    """One process of plain torch, left in peace."""
    request = write_request(Store(tmp_path_factory.mktemp("peaceful")), "sft", SINGLE_PROCESS)
    assert run_here(request) == ExitCode.DONE
    return request


@pytest.fixture(scope="module", params=ENGINES)
def stopped(request, tmp_path_factory, write_request, forking):
    """Two workers that are asked to stop, and one that goes on alone with the same key."""
    config = with_engine(request.param)
    store = Store(tmp_path_factory.mktemp("workers"))
    path = write_request(store, "sft", {**config, "resources": WORKERS})
    process = StageProcess(path, **forking)
    wait_for_step(process, path.parent, 25)
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=300)
    told = json.loads(path.with_name("error.json").read_text())
    log = (path.parent / "log-rank1.txt").read_text()
    steps = [c.step for c in complete_checkpoints([path.parent / "checkpoints"])]
    path = write_request(store, "sft", config)
    finished = StageProcess(path).wait(timeout=300)
    return {
        "code": code, "told": told, "log": log, "steps": steps, "finished": finished,
        "request": path,
    }  # fmt: skip


def test_every_worker_saves_and_leaves_when_the_stage_is_asked_to_stop(stopped):
    assert stopped["code"] == ExitCode.STOPPED
    assert stopped["told"]["kind"] == "StoppedError"
    assert "rank 1 of 2" in stopped["log"]


def test_the_checkpoint_of_the_stop_and_the_best_one_are_kept(stopped):
    newest = stopped["steps"][0]
    assert newest >= 25
    best = newest // 10 * 10  # the loss falls, so that the last evaluation is the best
    assert stopped["steps"] == sorted({newest, best}, reverse=True)


def test_what_two_workers_began_one_finishes_as_one_process_would_have(stopped, peaceful):
    assert stopped["finished"] == ExitCode.DONE
    ours, theirs = curve(stopped["request"]), curve(peaceful)
    assert [step for step, _ in ours] == list(range(1, STEPS + 1))  # one curve, by rank 0 alone
    assert dict(ours) == pytest.approx(dict(theirs), abs=1e-4)
    expected, found = (
        load_file(r.parent / "artifact" / "model.safetensors")
        for r in (peaceful, stopped["request"])
    )
    for name, weight in expected.items():
        assert torch.allclose(found[name], weight, atol=1e-4), name


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("kto", {}),  # its baseline is measured on the whole batch
        (
            "distillation",
            {
                "on_policy_fraction": 1.0,
                "rollouts": {
                    "engine": "transformers",
                    "max_response_tokens": 8,
                    "max_tokens": 64,
                },
            },
        ),
        (
            "distillation",
            {
                "on_policy_fraction": 1.0,
                "rollouts": {"engine": "vllm", "max_response_tokens": 8, "max_tokens": 64},
            },
        ),
    ],
    ids=["kto", "distillation", "distillation_vllm"],
)
def test_workers_ask_the_model_before_each_step_as_one_process_does(
    tmp_path, finish, write_request, forking, *, stage, settings
):
    """When ZeRO 3 has its weights in pieces."""
    store = Store(tmp_path / "store")
    base = {**SFT["base"], "num_heads": 1}  # vLLM's kernels for CPUs need heads of 32
    start = {**SFT, "base": base, "training": {**SFT["training"], "epochs": 1}}
    policy, other = (finish(store, "sft", {**start, "seed": seed}) for seed in (0, 1))
    parents = {"policy": policy, "reference" if stage == "kto" else "teacher": other}
    training = {**SFT["training"], "epochs": 1}
    config = {**settings, "data": {"name": "cafe", "size": 24}, "training": training}
    alone = finish(store, stage, config, parents)
    expected = store.attempt_of(alone).request
    shared = {**training, "engine": ENGINES["zero-3"]}
    together = {**config, "training": shared, "resources": WORKERS}
    request = write_request(store, stage, together, parents, attempt="a2")
    (expected.parents[2] / "manifest.json").unlink()  # engines and workers are no part of the key
    assert StageProcess(request, **forking).wait(timeout=120) == ExitCode.DONE
    losses = [
        [line["metrics"][f"{stage}/loss"] for line in read_jsonl(r.parent / "metrics.jsonl")]
        for r in (expected, request)
    ]
    assert len(losses[0]) == (6 if stage == "kto" else 3)  # 24 pairs are 48 ratings
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_a_killed_worker_takes_the_others_with_it(store, write_request):
    longer = {**SFT, "training": {**SFT["training"], "epochs": 50}, "resources": WORKERS}
    request = write_request(store, "sft", longer)
    process = StageProcess(request)
    wait_for_step(process, request.parent, 5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(int(children[1]), signal.SIGKILL)
    assert process.wait(timeout=300) == 128 + signal.SIGKILL
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert store.manifests() == []


def test_a_stage_that_fits_nothing_refuses_workers(store, write_request, run_here):
    request = write_request(store, "evaluation", {"prompts": {"name": "cafe", "size": 4}})
    content = json.loads(request.read_text())
    content["config"]["resources"] |= WORKERS
    request.write_text(json.dumps(content))
    assert run_here(request) == ExitCode.BAD_INPUT
    told = json.loads(request.with_name("error.json").read_text())["message"]
    assert "num_workers is 2" in told


def test_the_exit_code_is_that_of_the_worker_that_failed_and_not_of_its_echo():
    assert exit_code_of([75, 30, None]) == 30  # the first lost the second, which had a NaN
    assert exit_code_of([75, -9]) == 137
    assert exit_code_of([1, -9, 75]) == 137
    assert exit_code_of([0, 10]) == 10
    assert exit_code_of([75, 75]) == 75
    assert exit_code_of([None, 1]) == 1


class WorkerGroup:
    """Workers that end as they are told to."""

    def __init__(self, *codes):
        self.codes, self.signals = list(codes), []

    def poll(self):
        return self.codes

    def send(self, number):
        self.signals.append(number)
        self.codes = [143] * len(self.codes)

    def close(self):
        pass


def test_workers_are_watched_until_all_are_done_or_one_is_not():
    stop = threading.Event()
    assert supervise(WorkerGroup(0, 0), stop) == 0
    assert supervise(WorkerGroup(0, 40), stop) == 40
    told = WorkerGroup(None, None)
    stop.set()
    began = time.monotonic()
    assert supervise(told, stop) == 143
    assert told.signals == [signal.SIGTERM]
    assert time.monotonic() - began < 3


def test_a_worker_knows_itself_from_its_environment():
    assert rank_environment(1, 4, "host", 7, local_rank=0) == {
        "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "host",
        "MASTER_PORT": "7",
    }  # fmt: skip
