"""Stages that a fork server makes: they start at once, and end as if they had been typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_stage_process import ROOT, SFT, error_of, wait_for_step

from stages.runtime.exit_codes import ExitCode
from stages.runtime.forked_stage import TRANSIENT
from stages.runtime.store import Store
from tests.stages.fork_servers import ForkServers, wait_until, wait_until_gone
from training_core.checkpoint import complete_checkpoints

pytestmark = pytest.mark.slow

LONG = {**SFT, "training": {**SFT["training"], "epochs": 400}}


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkServers]:
    """One server for all tests of this file."""
    ours = ForkServers()
    yield ours
    ours.close()


def pid_of(request: Path) -> int:
    return json.loads(request.with_name("heartbeat.json").read_text())["pid"]


@pytest.fixture
def running(
    servers: ForkServers, store: Store, write_request: Callable[..., Path]
) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A stage that would run for a minute, at its tenth step."""
    request = write_request(store, "sft", LONG)
    process = servers.type_it(request)
    wait_for_step(process, request.parent, 10)
    yield process, request
    process.kill()
    process.wait()
    process.stdout.close()


# ------------------------------------------------------------------ what a stage gets and leaves

REWARD = """
import json, os, pathlib
def score(rollout):
    found = {"variables": dict(os.environ), "folder": os.getcwd()}
    pathlib.Path(__file__).with_name("found.json").write_text(json.dumps(found))
    return 1.0
"""


def test_a_forked_stage_has_the_output_and_the_digest_of_one_that_does_its_own_imports(
    servers, store, write_request, run_here, tmp_path
):
    config = {**SFT, "training": {**SFT["training"], "epochs": 1}}
    request = write_request(store, "sft", config)
    process = servers.type_it(request)
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    logged = request.with_name("log.txt").read_text().splitlines()
    assert "ratchet: done in" in logged[-1]
    assert set(logged) <= set(printed.splitlines())
    assert len(list(servers.folder.glob("*.sock"))) == 1
    alone = Store(tmp_path / "alone")
    assert run_here(write_request(alone, "sft", config)) == 0
    assert store.manifests()[0].digest == alone.manifests()[0].digest


def test_a_forked_stage_has_the_variables_and_the_folder_of_its_command(
    servers, store, write_request, finish, tmp_path
):
    tmp_path.joinpath("reward.py").write_text(REWARD)
    policy = finish(store, "sft", {**SFT, "training": {**SFT["training"], "epochs": 1}})
    config = {
        "prompts": {"name": "cafe", "size": 2},
        "reward": {"name": "python", "path": f"{tmp_path}/reward.py:score"},
        "rollouts": {"engine": "transformers", "max_response_tokens": 2, "max_tokens": 64},
        "keep_unfinished": True,
    }
    request = write_request(store, "rejection_sampling", config, {"policy": policy})
    process = servers.type_it(request, RAY_ADDRESS="127.0.0.1:1")  # no server ever has this one
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    found = json.loads(tmp_path.joinpath("found.json").read_text())
    assert found["folder"] == str(ROOT)
    assert found["variables"]["RAY_ADDRESS"] == "127.0.0.1:1"
    assert found["variables"].items() >= (servers.environment | {"PYTHONPATH": str(ROOT)}).items()
    assert len(list(servers.folder.glob("*.sock"))) == 1


def test_a_refused_request_has_its_exit_code_and_its_words(servers, store, write_request):
    request = write_request(store, "sft", SFT)
    content = json.loads(request.read_text())
    request.write_text(json.dumps({**content, "stage": "stf"}))
    process = servers.type_it(request)
    assert "did you mean 'sft'?" in process.communicate()[0]
    assert process.returncode == ExitCode.BAD_INPUT
    assert error_of(request)["kind"] == "ConfigError"


# ------------------------------------------------------------------ signals and kills


def test_a_forked_stage_that_is_asked_to_stop_saves_and_exits_143(running):
    process, request = running
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == ExitCode.STOPPED
    assert error_of(request)["kind"] == "StoppedError"
    assert complete_checkpoints([request.parent / "checkpoints"])[0].step >= 10


def test_a_killed_stage_kills_its_command_with_the_same_signal(running):
    process, request = running
    os.kill(pid_of(request), signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_stage_ends_with_its_killed_command_and_with_what_it_has_started(servers, running):
    process, request = running
    (stage,) = servers.stages_of(request)
    assert stage.pid == pid_of(request) != process.pid
    process.kill()
    wait_until_gone([stage])


def test_the_death_of_the_server_ends_no_stage(servers, store, write_request):
    request = write_request(store, "sft", SFT)
    process = servers.type_it(request)
    wait_for_step(process, request.parent, 1)
    (stage,) = servers.stages_of(request)
    server = stage.parent().parent()
    assert server in servers.processes()
    server.kill()
    wait_until_gone([server])
    assert process.communicate()[0].count("done in") == 1
    assert process.returncode == 0


def test_a_lost_stage_is_transient(servers, running):
    process, request = running
    (stage,) = servers.stages_of(request)
    stage.parent().kill()
    process.communicate()
    assert process.returncode == TRANSIENT == ExitCode.TRANSIENT
    wait_until_gone([stage])


def test_workers_are_forked_too_and_end_with_their_stage(servers, store, write_request):
    request = write_request(store, "sft", {**LONG, "resources": {"num_workers": 2}})
    process = servers.type_it(request)
    wait_for_step(process, request.parent, 5)
    _, *workers = stages = servers.stages_of(request)
    assert len(workers) == 2
    assert len(list(servers.folder.glob("*.sock"))) == 1
    assert pid_of(request) in [worker.pid for worker in workers]
    workers[1].kill()
    process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    wait_until_gone(stages)
    beat = request.with_name("heartbeat.json")
    beat.unlink()
    process = servers.type_it(request)
    wait_until(beat.exists)
    stages = servers.stages_of(request)
    assert len(stages) == 3
    process.kill()
    process.communicate()
    wait_until_gone(stages)
