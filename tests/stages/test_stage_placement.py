"""The stage `ppo` with engines of all placements, in real processes on a real Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stages import ppo
from stages.attempt import Attempt
from stages.catalog import find_stage
from stages.configs.placement_config import ApartConfig, ApartScoringConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.reward_config import PythonRewardConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.exit_codes import ExitCode
from stages.runtime.metric_files import FileSink, NullSink
from stages.runtime.ray_engines import RayEngineHost
from stages.runtime.ray_rewards import RayReward
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_cluster import StageCluster
from stages.runtime.stage_key import digest_of_tree, stage_key
from stages.runtime.store import Request
from stages.runtime.worker_processes import IN_RAY_JOB, free_port
from stages.sampling.rewards import build_reward
from tests.training_core.two_processes import together
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.rewards.reward import Reward
from training_core.rollout.engine_process import EngineProcess
from training_core.rollout.engine_spec import EngineSpec
from training_core.types import Prompt, Rollout

pytestmark = [pytest.mark.slow, pytest.mark.services]

REWARD = '''
def share(rollout):
    """Share of one word among the response's words."""
    words = rollout.text.split()
    return words.count("tea") / max(1, len(words))
'''
ZERO = {"zero-2": {"name": "deepspeed", "zero_stage": 2}, "zero-3": {"name": "deepspeed"}}
WAYS = {"zero-2": "memory", "zero-3": "collective"}
APART = {"name": "apart", "engines": 2, "num_cpus": 1}
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""No token in the home folder, and nothing that listens to other machines."""
ROOT = Path(__file__).parents[2]
STEPS = 2


def config_of(start: Path, **fields: Any) -> PpoConfig:
    plain: dict[str, Any] = {
        "prompts": {"name": "cafe", "size": 16, "seed": 4},
        "reward": {"name": "python", "path": f"{start / 'reward.py'}:share"},
        "rollouts": {"engine": "vllm", "max_response_tokens": 6, "max_tokens": 64},
        "steps": STEPS,
        "prompts_per_step": 5,  # the ranks have unequal shares
        "advantage": {"name": "grpo"},
        "policy_optimizer": {"learning_rate": 1e-3},
    }
    rollouts = {**plain["rollouts"], **fields.pop("rollouts", {})}
    return PpoConfig.model_validate({**plain, **fields, "rollouts": rollouts})


@pytest.fixture(scope="module")
def start(make_policy, tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    policy = make_policy(hidden_size=64, num_heads=2, intermediate_size=128)
    hub.save(policy, tokenizer, folder / "policy")
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a Ray cluster of this machine."""
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short, for Ray's sockets
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
        command += ["--node-ip-address", host, "--port", port, "--include-dashboard", "false"]
        command += ["--temp-dir", folder, "--num-cpus", "8", "--disable-usage-stats"]
        command += ["--min-worker-port", "0", "--max-worker-port", "0"]
        with (Path(folder) / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command, env=os.environ | RAY, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(start: Path, attempt: Attempt, config: PpoConfig, **context: Any) -> None:
    attempt.directory.mkdir(parents=True, exist_ok=True)
    dist_info = context.get("dist_info", SINGLE_PROCESS)
    sink = FileSink(attempt, "ppo") if dist_info.is_first else NullSink()
    inputs = {"policy": start / "policy", "reference": start / "policy"}
    ppo.run(config, inputs, Context(attempt, sink, **context))


class KeptEngines(RayEngineHost):
    """Hands its engines from one run to the next, since it takes seconds to start vLLM."""

    def __init__(self, placement: ApartConfig) -> None:
        super().__init__(placement, lambda: False)
        self.processes: dict[int, EngineProcess] = {}

    def start(self, number: int, spec: EngineSpec) -> EngineProcess:
        if number not in self.processes:
            process = super().start(number, spec)
            process.close = lambda: None
            self.processes[number] = process
        return self.processes[number]

    def close(self) -> None:
        pass


class KeepingCluster(StageCluster):
    """The cluster of this process, with engines for several runs."""

    engines: KeptEngines | None = None
    reward_of_run: Reward | None = None

    def reward(self, placement: ApartScoringConfig, build: Callable[[], Reward]) -> Reward:
        self.reward_of_run = super().reward(placement, build)
        return self.reward_of_run

    def engine_host(self, placement: ApartConfig) -> KeptEngines:
        self.engines = self.engines or KeptEngines(placement)
        return self.engines


def runs_of_rank(dist_info: DistInfo, start: Path, folder: Path, address: str) -> None:
    """All runs of one of two ranks, so that the processes start once."""
    os.environ |= {**RAY, "RAY_ADDRESS": address}
    cluster = KeepingCluster(lambda: False)
    for name, engine in ZERO.items():
        rollouts = {"placement": {**APART, "weights": WAYS[name]}}
        scoring = {"name": "apart" if name == "zero-2" else "inline"}
        config = config_of(start, engine=engine, rollouts=rollouts, scoring=scoring)
        attempt = Attempt(folder / f"apart-{name}" / "a1")
        run(start, attempt, config, dist_info=dist_info, cluster=cluster)
    if dist_info.is_first:
        assert_a_killed_scorer_is_restarted(cluster, start)
    colocated = config_of(
        start, engine=ZERO["zero-3"], rollouts={"placement": {"name": "colocated"}}
    )
    run(start, Attempt(folder / "colocated" / "a1"), colocated, dist_info=dist_info)


def assert_a_killed_scorer_is_restarted(cluster: KeepingCluster, start: Path) -> None:
    """The scorer of the last run that had one."""
    import ray

    words = Prompt(id="1", messages=(), text="", input_ids=(1,), columns={})
    rollouts = [Rollout(words, (1,), (0.0,), text, True, 0) for text in ("tea", "tea or not", "")]
    assert isinstance(cluster.reward_of_run, RayReward)
    actors: list[Any] = list(cluster.reward_of_run._actors)
    (actor,) = actors
    ray.kill(actor, no_restart=False)
    assert cluster.reward_of_run(rollouts) == pytest.approx([1, 1 / 3, 0])
    nowhere = PythonRewardConfig(path=f"{start / 'nowhere.py'}:share")
    build = partial(build_reward, nowhere, {})
    with pytest.raises(ConfigError, match=r"nowhere\.py"):
        StageCluster(lambda: False).reward(ApartScoringConfig(), build)(rollouts)


@pytest.fixture(scope="module")
def finished(start, cluster, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run(start, Attempt(folder / "inline" / "a1"), config_of(start))
    together(
        2, folder / "ranks", partial(runs_of_rank, start=start, folder=folder, address=cluster)
    )
    return folder


def curve(attempt: Attempt) -> list[dict[str, float]]:
    return [line["metrics"] for line in read_jsonl(attempt.metrics)]


@pytest.mark.parametrize("name", ["colocated", *(f"apart-{zero}" for zero in ZERO)])
def test_every_placement_makes_the_rollouts_and_the_updates_of_one_process(start, finished, name):
    ours, theirs = Attempt(finished / name / "a1"), Attempt(finished / "inline" / "a1")
    assert_alike(ours, theirs, start)


def assert_alike(ours: Attempt, theirs: Attempt, start: Path) -> None:
    """Two runs have the same rollouts and updates, within rounding."""
    assert len(curve(ours)) == STEPS
    for mine, other in zip(curve(ours), curve(theirs), strict=True):
        for metric in ("reward", "response_tokens", "policy_loss", "policy_grad_norm"):
            found, expected = mine[f"ppo/{metric}"], other[f"ppo/{metric}"]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    trained, expected, before = (
        load_file(folder / "model.safetensors")
        for folder in (ours.artifact, theirs.artifact, start / "policy")
    )
    for weight, values in trained.items():
        torch.testing.assert_close(values, expected[weight], rtol=1e-3, atol=1e-4)
    assert max(float((trained[n] - before[n]).abs().max()) for n in trained) > 1e-3


KILLING = (
    REWARD
    + '''

def share_and_kill(rollout, marker):
    """Kill the process of the engine, once."""
    try:
        open(marker, "x").close()
    except FileExistsError:
        return share(rollout)
    import psutil
    actors = [p for p in psutil.process_iter() if "EngineActor" in p.name()]
    children = [child for actor in actors for child in actor.children()]
    (process,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    process.kill()
    return share(rollout)
'''
)


def test_a_job_places_its_workers_and_engines_and_replaces_a_killed_engine(
    start, cluster, tmp_path, store
):
    """`python -m stages` in a Ray job: two workers and an engine are actors."""
    (start / "killing.py").write_text(KILLING)
    reward = {
        "name": "python",
        "path": f"{start / 'killing.py'}:share_and_kill",
        "arguments": {"marker": str(tmp_path / "killed")},
    }
    placement = {"name": "apart", "num_cpus": 1, "weights": "collective"}
    config = config_of(
        start,
        reward=reward,
        rollouts={"engine": "transformers", "placement": placement},
        resources={"num_workers": 2},
        steps=STEPS,
    )
    spec, policy = find_stage("ppo"), start / "policy"
    inputs = {"policy": policy, "reference": policy}
    digests = {role: digest_of_tree(folder) for role, folder in inputs.items()}
    digests |= digests_of_sources(config)
    request = Request(
        stage="ppo",
        step="ppo",
        key=stage_key(spec, config, digests),
        config=config.model_dump(mode="json"),
        inputs={role: str(folder) for role, folder in inputs.items()},
        input_digests=digests,
        parents={},
    )
    attempt = store.attempt("ppo", request.key, "a1")
    attempt.directory.mkdir(parents=True)
    attempt.request.write_text(request.model_dump_json())
    command = [sys.executable, "-m", "stages", str(attempt.request)]
    environment = {**os.environ, **RAY, "RAY_ADDRESS": cluster, IN_RAY_JOB: "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    log = attempt.log_of(0).read_text()
    assert "rollout engine 1 of 1 (transformers) was killed by SIGKILL" in log
    assert "restart 1 of at most 3" in log
    alone = Attempt(tmp_path / "alone")
    run(start, alone, config_of(start, rollouts={"engine": "transformers"}))
    assert_alike(attempt, alone, start)
