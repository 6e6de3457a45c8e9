"""Sample from several policies on the same prompts and score; evaluation compares the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from stages.configs.evaluation_config import EvaluationConfig
from stages.contract import Context, Inputs
from stages.sampling.rewards import build_reward
from stages.sampling.rollouts import (
    load_prompts,
    open_engine,
    sample_groups,
    sampling_of,
    verify_engine,
)
from stages.training.engines import best_device
from training_core.data import chat
from training_core.data.batching import collate, cut_by_tokens
from training_core.models import hub
from training_core.models.causal_lm import logprobs
from training_core.rewards.reward import score
from training_core.rollout.engine import sync
from training_core.types import Rollout, ScoredRollout


@dataclass(frozen=True)
class Judged:
    """The scored responses of one policy.

    Attributes:
        scored: rollouts with rewards, in the order of the prompts.
        kl_to_baseline: mean over responses of log(policy / baseline), in nats.
    """

    scored: Sequence[ScoredRollout]
    kl_to_baseline: float


def judge_policies(config: EvaluationConfig, inputs: Inputs, context: Context) -> dict[str, Judged]:
    """Score all input policies with one engine, which loads their weights one after the other.

    Returns:
        The scored responses by name: `baseline`, `policy`, and `<name>` for each role
        `policy_<name>`.
    """
    directories = _policies(inputs)
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    prompts = load_prompts(config.prompts, tokenizer, config.rollouts)
    reward = build_reward(config.reward, inputs)
    baseline = hub.freeze(hub.load_policy(directories["baseline"])).to(best_device())
    engine = open_engine(config.rollouts, directories["baseline"], baseline, tokenizer)
    judged = {}
    for done, (name, directory) in enumerate(directories.items(), 1):
        policy = hub.freeze(hub.load_policy(directory)).to(best_device())
        sync(engine, policy, done)
        groups = sample_groups(
            engine,
            prompts,
            sampling_of(config.rollouts),
            group_size=config.responses_per_prompt,
            seed=config.seed,
        )
        rollouts = [r for group in groups for r in group]
        verify_engine(engine, policy, rollouts, config.rollouts, pad_id)
        scored = score(reward, rollouts, unscored_limit=config.unscored_limit)
        judged[name] = Judged(
            scored, _kl(policy, baseline, rollouts, pad_id, config.rollouts.temperature)
        )
        context.sink.progress(done, len(directories), f"judged {name}")
    engine.close()
    return judged


def _policies(inputs: Inputs) -> dict[str, Path]:
    further = {
        role.removeprefix("policy_"): path
        for role, path in inputs.items()
        if role.startswith("policy_")
    }
    return {"baseline": inputs["baseline"], **further, "policy": inputs["policy"]}


@torch.no_grad()
def _kl(
    policy: PreTrainedModel,
    baseline: PreTrainedModel,
    rollouts: Sequence[Rollout],
    pad_id: int,
    temperature: float,
) -> float:
    examples = [r.example() for r in rollouts]
    total = 0.0
    for cut in cut_by_tokens([len(e) for e in examples], 8192):
        batch = collate([examples[i] for i in cut], pad_id, policy.device)
        ours, theirs = (logprobs(m, batch, temperature=temperature) for m in (policy, baseline))
        total += float((ours - theirs).sum())
    return total / len(rollouts)
