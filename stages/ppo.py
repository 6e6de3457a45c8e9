"""Reinforcement learning with PPO and its relatives, e.g. GRPO.

Repeat: weight sync, sampling, rewards, advantages, update.
"""

from __future__ import annotations

from stages.configs.ppo_config import PpoConfig
from stages.contract import Context, Inputs, Result
from stages.reinforcement.controller import train


def run(config: PpoConfig, inputs: Inputs, context: Context) -> Result:
    """Train the input `policy`, kept near the input `reference`; the artifact is the new policy.

    Metrics: means over the last tenth of the rounds of `reward`, `kl` (nats per response; only
    with a reference), `response_tokens`, and the largest `logprob_gap` between sampler and trainer.
    With `evaluation` also the held-out metrics of the artifact (`heldout_reward`, …) and of the
    input policy (`heldout_reward_before`, …), `exported_step` and `best_step`, and the
    `heldout_tokens` of all evaluations.
    """
    return train(config, inputs, context)
