"""Proximal policy optimisation: repeat sampling, rewards, advantages, update and sync."""

from __future__ import annotations

from stages.configs.ppo_config import PpoConfig
from stages.contract import Context, Inputs, Result
from stages.reinforcement.controller import train


def run(config: PpoConfig, inputs: Inputs, context: Context) -> Result:
    """Train the input `policy`, kept near the input `reference`; the artifact is the new policy.

    Metrics: means over the last tenth of the rounds of `reward`, `kl` (nats per response),
    `response_tokens`, and the largest `logprob_gap` between sampler and trainer.
    """
    return Result("policy", train(config, inputs, context))
