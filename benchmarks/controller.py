"""What the control loop of `ppo` costs by itself, per rollout.

    python -m benchmarks controller [--rollouts 64 1024 65536] [--advantages gae grpo]

The rounds are those of the stage: collector, rewards, shaper, advantages, experience, micro-batches
and the loop of the update. Models and sampler are replaced by functions that return at once, so no
forward pass is measured. Prompts have 8 to 64 tokens, responses 16 to 128, groups 8 responses, and
the reward has two parts. Prints a Markdown table: seconds of the processor per round (the fastest
of the repeats), microseconds per rollout, and the shares of the parts of a round.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.controller import SECONDS, play_round
from stages.reinforcement.experience import TokenFunctions
from stages.reinforcement.groups import GroupCollector
from stages.reinforcement.kl_control import KlControl
from stages.reinforcement.learners import Learner
from stages.reinforcement.ppo_models import PpoModels, estimation_of
from stages.reinforcement.reward_shaper import RewardShaper
from stages.sampling.rewards import build_reward
from training_core.data.chat import CHAT_TEMPLATES
from training_core.models.scratch import make_tokenizer
from training_core.rollout.engine import Policy, generate_in_order
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.types import Batch, Loss, Prompt, Rollout

GROUP_SIZE = 8
VOCABULARY = 1000
LOGPROB = -1.0
RESPONSES = 997
"""Number of different responses."""


def run(arguments: Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(arguments.threads)
    names = [name.removesuffix("_seconds") for name in SECONDS]
    columns = ["advantage", "rollouts", "s per round", "µs per rollout", *names]
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for advantage in arguments.advantages:
        for rollouts in arguments.rollouts:
            print(_row(advantage, rollouts, arguments.repeats), flush=True)


def _row(advantage: str, rollouts: int, repeats: int) -> str:
    config = _config(advantage, rollouts)
    models = _models(config)
    found: list[tuple[float, Mapping[str, float]]] = []
    for number in range(repeats + 1):
        began = time.process_time()
        metrics = play_round(config, models, number)
        found.append((time.process_time() - began, metrics))
    seconds, metrics = min(found[1:], key=lambda one: one[0])  # the first one warms up
    whole = sum(metrics[name] for name in SECONDS)
    shares = " | ".join(f"{metrics[name] / whole:.0%}" for name in SECONDS)
    per_rollout = f"{seconds / rollouts * 1e6:.0f}"
    return f"| {advantage} | {rollouts:,} | {seconds:.3f} | {per_rollout} | {shares} |"


def _config(advantage: str, rollouts: int) -> PpoConfig:
    parts = [
        {"weight": 1.0, "reward": {"name": "length", "free_tokens": 32, "max_tokens": 128}},
        {"weight": 1.0, "reward": {"name": "pattern", "pattern": ".*a.*"}},
    ]
    return PpoConfig.model_validate(
        {
            "prompts": {"name": "cafe", "size": 1},  # not read
            "reward": {"name": "weighted", "parts": parts},
            "advantage": {"name": advantage},
            "rollouts": {"max_response_tokens": 128, "max_tokens": 256},
            "prompts_per_step": rollouts // GROUP_SIZE,
            "group_size": GROUP_SIZE,
            "normalise_rewards": True,
            "updates_per_step": min(4, rollouts // GROUP_SIZE),
        }
    )


def _models(config: PpoConfig) -> PpoModels:
    draw = random.Random(0)
    prompts = [_prompt(number, draw) for number in range(4096)]
    engine = StubEngine(draw)
    has_critic = config.advantage.needs_critic
    return PpoModels(
        tokenizer=make_tokenizer(["word"], CHAT_TEMPLATES["roles"]),
        policy=Learner(StubTrainEngine()),
        critic=Learner(StubTrainEngine()) if has_critic else None,
        reference=None,
        rollout_engine=engine,
        collector=GroupCollector(config, engine, prompts, build_reward(config.reward, {})),
        shaper=RewardShaper(config),
        kl_control=KlControl(config),
        logprobs=_logprobs,
        functions=TokenFunctions(_logprobs, _logprobs, _logprobs if has_critic else None),
        estimation=estimation_of(config),
        mix=None,
        evaluation=None,
        device=torch.device("cpu"),
    )


def _prompt(number: int, draw: random.Random) -> Prompt:
    return Prompt(id=str(number), messages=(), text="", input_ids=_ids(draw, 8, 64))


def _ids(draw: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw.randrange(5, VOCABULARY) for _ in range(draw.randint(low, high)))


def _logprobs(batch: Batch) -> Tensor:
    return LOGPROB * batch.loss_mask.float()


class StubEngine:
    """A rollout engine that returns a made-up response to every request at once."""

    name = "stub"

    def __init__(self, draw: random.Random) -> None:
        self.policy_version = 0
        self._unfinished: list[RolloutRequest] = []
        responses = [_ids(draw, 16, 128) for _ in range(RESPONSES)]
        self._responses = [(ids, (LOGPROB,) * len(ids), " ".join("abc") * 20) for ids in responses]

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Accept requests."""
        self._unfinished += requests

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Yield a rollout of each request."""
        requests, self._unfinished = self._unfinished, []
        for request in requests:
            ids, logprobs, text = self._responses[request.seed % RESPONSES]
            is_finished, version = len(ids) < 128, self.policy_version
            yield request.id, Rollout(request.prompt, ids, logprobs, text, is_finished, version)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Return one response per prompt."""
        return generate_in_order(self, prompts, sampling, seeds)

    def load_weights(self, policy: Policy, version: int) -> str:
        """Take the version."""
        del policy
        self.policy_version = version
        return ""

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return what `load_weights` returns."""
        del weights
        return ""

    def sleep(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class StubTrainEngine:
    """An engine whose loss is 0 and that updates nothing."""

    needs_even_ranks = computes_together = False
    learning_rate = 0.0

    def __init__(self) -> None:
        self.model: nn.Module = nn.Linear(1, 1)

    def loss(self, objective: Callable[..., Loss], micro_batch: Any) -> Loss:
        """Return a loss of 0 over the trained tokens."""
        del objective
        return Loss(torch.zeros(()), float(micro_batch.batch.loss_mask.sum()), {})

    def backward(self, total: Tensor) -> None:
        """Do nothing."""

    def step(self, count: float) -> float:
        """Return a gradient norm of 0."""
        del count
        return 0.0

    def compute(self, function: Callable[[Any, Any], Any], argument: Any) -> Any:
        """Return `function(model, argument)`."""
        return function(self.model, argument)

    def at_work(self) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    def gathered_weights(self) -> AbstractContextManager[nn.Module]:
        """Return the model."""
        return nullcontext(self.model)

    weights_on_first_rank = gathered_weights

    def weights_to_send(self) -> nn.Module:
        """Return the model."""
        return self.model

    def finish(self, *, only_first_rank: bool = False) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def save_shards(self, directory: object) -> None:
        """Write nothing."""

    def load_shards(self, directory: object, scratch: object) -> None:
        """Read nothing."""
