"""The stage `ppo` on two workers, under every engine, is the stage on one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stages import ppo
from stages.attempt import Attempt
from stages.configs.ppo_config import PpoConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink, NullSink
from tests.training_core.two_processes import together
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import StoppedError
from training_core.models import hub

pytestmark = pytest.mark.slow

REWARD = '''
def share(rollout):
    """Share of one word among the response's words."""
    words = rollout.text.split()
    return words.count("tea") / max(1, len(words))
'''
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {"name": "torch"},
    "zero-2": {"name": "deepspeed", "zero_stage": 2},
    "zero-3": {"name": "deepspeed", "zero_stage": 3},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "gae": {
        "ema_decay": 0.5,
        "frozen_models": {"shard": True},
        "evaluation": {
            "every": 1,
            "prompts": [{"data": {"name": "cafe", "split": "heldout", "size": 7}}],
        },
    },
    "grpo": {"advantage": {"name": "grpo"}, "kl_in": "loss", "kl_estimator": "k2"},
}
STEPS = 3
CLOSE = {
    f"ppo/{metric}"
    for metric in (
        *("reward", "response_tokens", "policy_loss", "policy_grad_norm"),
        *("heldout_reward", "heldout_reward_low", "heldout_tokens"),
    )
}


def config_of(start: Path, engine: str, algorithm: str) -> PpoConfig:
    plain = {
        "prompts": {"name": "cafe", "size": 16, "seed": 4},
        "reward": {"name": "python", "path": f"{start / 'reward.py'}:share"},
        "rollouts": {"engine": "transformers", "max_response_tokens": 6, "max_tokens": 64},
        "steps": STEPS,
        "prompts_per_step": 5,  # the ranks have unequal shares
        "policy_optimizer": {"learning_rate": 1e-3},
        "critic_optimizer": {"learning_rate": 1e-3},
        "save_every_steps": 2,
        "engine": ENGINES[engine],
    }
    return PpoConfig.model_validate({**plain, **ALGORITHMS[algorithm]})


def run(
    start: Path,
    attempt: Attempt,
    dist_info: DistInfo,
    engine: str,
    algorithm: str,
    **context: Any,
) -> None:
    attempt.directory.mkdir(parents=True, exist_ok=True)
    sink = FileSink(attempt, "ppo") if dist_info.is_first else NullSink()
    config = config_of(start, engine, algorithm)
    inputs = {"policy": start / "policy", "reference": start / "policy"}
    ppo.run(config, inputs, Context(attempt, sink, dist_info=dist_info, **context))


def attempt_in(folder: Path, engine: str, algorithm: str) -> Attempt:
    return Attempt(folder / f"{engine}-{algorithm}" / "a1")


def every_engine(start: Path, folder: Path, dist_info: DistInfo) -> None:
    """All runs of one rank, so that the processes start once."""
    for engine in ENGINES:
        for algorithm in ALGORITHMS:
            attempt = attempt_in(folder, engine, algorithm)
            run(start, attempt, dist_info, engine, algorithm)
    stopped = attempt_in(folder / "stopped", "torch", "gae")
    with pytest.raises(StoppedError):  # at once, i.e. after the first round
        run(start, stopped, dist_info, "torch", "gae", should_stop=lambda: True)


@pytest.fixture(scope="module")
def finished(make_policy, tokenizer, tmp_path_factory) -> Path:
    """Folder with every run on two workers, and those of plain torch on one."""
    start = tmp_path_factory.mktemp("start")
    hub.save(make_policy(), tokenizer, start / "policy")
    (start / "reward.py").write_text(REWARD)
    for algorithm in ALGORITHMS:
        attempt = attempt_in(start / "one", "torch", algorithm)
        run(start, attempt, SINGLE_PROCESS, "torch", algorithm)
    together(2, start / "two", partial(every_engine, start, start / "two"))
    return start


def weights_in(attempt: Attempt) -> dict[str, torch.Tensor]:
    return load_file(attempt.artifact / "model.safetensors")


def curve(attempt: Attempt) -> list[dict[str, float]]:
    return [line["metrics"] for line in read_jsonl(attempt.metrics)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_make_the_rollouts_and_the_updates_of_one(finished, engine, algorithm):
    two = attempt_in(finished / "two", engine, algorithm)
    one = attempt_in(finished / "one", "torch", algorithm)
    ours, theirs = curve(two), curve(one)
    before = 1 if "evaluation" in ALGORITHMS[algorithm] else 0
    assert len(ours) == len(theirs) == before + STEPS
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in CLOSE & mine.keys():
            torch.testing.assert_close(mine[name], other[name], rtol=1e-4, atol=1e-6)
    trained, start = weights_in(two), load_file(finished / "policy" / "model.safetensors")
    require_close(trained, weights_in(one))
    assert max(float((trained[name] - start[name]).abs().max()) for name in trained) > 1e-3


def test_one_worker_goes_on_where_two_were_stopped(finished):
    stopped = attempt_in(finished / "two" / "stopped", "torch", "gae")
    assert len(curve(stopped)) == 2  # before the first round, and after it
    attempt = Attempt(stopped.directory.with_name("a2"))
    run(finished, attempt, SINGLE_PROCESS, "torch", "gae", earlier_attempts=(stopped,))
    assert len(curve(attempt)) == 1 + STEPS
    require_close(weights_in(attempt), weights_in(attempt_in(finished / "one", "torch", "gae")))


def require_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Up to rounding, which AdamW's first steps enlarge where a gradient is almost zero."""
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=1e-3, atol=1e-5)
