"""Rounds of GRPO and PPO on made-up rollouts, for the benchmark `gpu`.

They call the functions of the stage `ppo`. Sampling is another row of the table.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from benchmarks.gpu_models import (
    UNTIMED,
    Case,
    Measured,
    in_precision,
    make_engine,
    make_model,
    seconds_of,
    size_of,
)
from benchmarks.gpu_rows import count_flops, count_tokens, random_groups
from stages.reinforcement.experience import Estimation, TokenFunctions, evaluate, make_experience
from stages.reinforcement.learners import FrozenModel, Learner, cut, policy_logprobs
from stages.reinforcement.rollout_group import RolloutGroup
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import POLICY_LOSSES
from training_core.algorithms.value_losses import VALUE_LOSSES
from training_core.models.scalar_head import token_values
from training_core.objectives.reinforcement import KlLoss, policy_objective, value_objective
from training_core.types import Batch, Prompt, Rollout, ScoredRollout

KL_COEF = 0.001
CLIP = 0.2


@dataclass(frozen=True)
class Method:
    """How a method uses a round: KL in the loss or in the reward, with or without a critic."""

    estimation: Estimation
    kl_loss: KlLoss | None
    kl_in_reward: float
    has_critic: bool


METHODS = {
    "grpo": Method(
        Estimation(partial(ADVANTAGES["grpo"].function, std_epsilon=1e-4), KL_ESTIMATORS["k3"]),
        KlLoss(KL_ESTIMATORS["k3"], KL_COEF),
        kl_in_reward=0.0,
        has_critic=False,
    ),
    "ppo": Method(
        Estimation(
            partial(ADVANTAGES["gae"].function, gamma=1.0, gae_lambda=0.95), KL_ESTIMATORS["k1"]
        ),
        kl_loss=None,
        kl_in_reward=KL_COEF,
        has_critic=True,
    ),
}


def reinforce(case: Case) -> Measured:
    """Time rounds without sampling: log-probabilities, advantages, one update of each model.

    The policy is also the reference, which takes the same time.
    """
    policy = make_model(case)
    trained, config = _Models(policy, case), policy.config
    rounds = [_made_up(case, config.vocab_size, seed) for seed in range(UNTIMED + case.steps)]
    seconds = seconds_of(case, lambda number: trained.round(rounds[number], number), case.steps)
    sequences = [
        [tuple(s.rollout.example() for s in group.scored) for group in groups]
        for groups in rounds[UNTIMED:]
    ]
    return Measured(
        size_of(policy),
        sum(count_tokens(case.method, groups) for groups in sequences),
        sum(count_flops(case.method, config, groups, shares=False) for groups in sequences),
        seconds,
    )


class _Models:
    """Policy and critic, and what a round does with them."""

    def __init__(self, policy: Any, case: Case) -> None:
        self._case, self._method = case, METHODS[case.method]
        self._policy = Learner(make_engine(policy, case))
        self._critic = None
        if self._method.has_critic:
            self._critic = Learner(make_engine(make_model(case, is_scalar=True), case))
        budget = case.micro_batch_tokens
        logprobs = in_precision(policy_logprobs(self._policy.engine, 1.0, budget), case)
        values = None
        if self._critic is not None:
            values = in_precision(FrozenModel(self._critic.engine, _values, budget), case)
        self._functions = TokenFunctions(logprobs, logprobs, values)
        self._policy_objective = policy_objective(
            partial(POLICY_LOSSES["ppo_clip"].function, clip_low=CLIP, clip_high=CLIP),
            lambda losses, mask: AGGREGATIONS["token_mean"](losses, mask, case.max_tokens),
            temperature=1.0,
            kl_loss=self._method.kl_loss,
        )
        self._value_objective = value_objective(partial(VALUE_LOSSES["clipped"], clip=CLIP))

    def round(self, groups: Sequence[RolloutGroup], number: int) -> None:
        """Do what the stage does after sampling."""
        case, method = self._case, self._method
        rollouts = [s.rollout for group in groups for s in group.scored]
        evaluation = evaluate(rollouts, self._functions, pad_id=0, device=case.device)
        experience = make_experience(
            evaluation, groups, method.estimation, kl_coef=method.kl_in_reward
        )
        assert experience is not None  # no response is masked
        batches = [cut(experience, range(len(rollouts)), case.micro_batch_tokens)]
        self._policy.update(in_precision(self._policy_objective, case), batches, number)
        if self._critic is not None:
            self._critic.update(in_precision(self._value_objective, case), batches, number)


def _values(model: nn.Module, batch: Batch) -> Tensor:
    """Return the critic's values, which autocast leaves in bfloat16."""
    return token_values(model, batch).float()


def _made_up(case: Case, vocabulary: int, seed: int) -> list[RolloutGroup]:
    """Make groups with random tokens and rewards; their log-probabilities are not used."""
    draw = random.Random(seed)
    sizes = {"num_prompts": case.batch_size // case.group_size, "num_responses": case.group_size}
    groups: list[RolloutGroup] = []
    for number, (ids, responses) in enumerate(random_groups(case, vocabulary, seed, **sizes)):
        prompt = Prompt(id=str(number), messages=(), text="", input_ids=ids)
        rollouts = [Rollout(prompt, r, (0.0,) * len(r), "", True, 0) for r in responses]
        groups.append(RolloutGroup(tuple(ScoredRollout(r, draw.random()) for r in rollouts)))
    return groups
