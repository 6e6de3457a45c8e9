"""Experience of a few rollouts that a test writes down, without a stage around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from stages.reinforcement.experience import (
    Estimation,
    TokenFunctions,
    evaluate,
    make_experience,
)
from stages.reinforcement.rollout_group import RolloutGroup
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.kl import k1
from training_core.models.offloading import FrozenWeights
from training_core.types import Experience, ScoredRollout

CPU = torch.device("cpu")


def held(model):
    """A model in the form in which PPO uses those that compute without gradients."""
    return FrozenWeights(model, model.device)


def estimate(name: str = "gae", **hyperparameters: float) -> Callable[..., Any]:
    """An entry of `ADVANTAGES`; GAE sums the rewards if nothing else is given."""
    given = hyperparameters or ({"gamma": 1.0, "gae_lambda": 1.0} if name == "gae" else {})
    return partial(ADVANTAGES[name].function, **given)


def experience_of(
    scored: Sequence[ScoredRollout],
    policy: Callable[..., Any] | None,
    reference: Callable[..., Any] | None = None,
    critic: Callable[..., Any] | None = None,
    *,
    kl_coef: float = 0.0,
    groups: Sequence[RolloutGroup] | None = None,
    critic_end: Callable[..., Any] | None = None,
    **estimation: Any,
) -> Experience:
    """The experience of rollouts that are groups of one, or of the given groups."""
    functions = TokenFunctions(policy, reference, critic, critic_end)
    evaluation = evaluate([s.rollout for s in scored], functions, pad_id=0, device=CPU)
    settings = Estimation(**{"estimate": estimate(), "kl_estimator": k1, **estimation})
    each = [RolloutGroup((s,)) for s in scored] if groups is None else groups
    found = make_experience(evaluation, each, settings, kl_coef=kl_coef)
    assert found is not None
    return found
