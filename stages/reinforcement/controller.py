"""The controller of PPO, top to bottom.

Prompts -> rollouts -> rewards -> experience -> update -> weight sync.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from stages.configs.ppo_config import PpoConfig
from stages.contract import Context, Inputs
from stages.files import read_jsonl
from stages.reinforcement.experience import make_experience
from stages.reinforcement.learners import Learner, critic_values, policy_logprobs
from stages.sampling.rewards import build_reward
from stages.sampling.rollouts import (
    load_prompts,
    open_engine,
    sample_groups,
    sampling_of,
)
from stages.training.checkpointing import resume, saver
from stages.training.engines import best_device, make_engine
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import ppo_clip
from training_core.algorithms.value_losses import clipped_value_loss
from training_core.data.batching import batch_indices, steps_in
from training_core.data.chat import pad_id
from training_core.errors import StoppedError
from training_core.models import hub
from training_core.objectives.reinforcement import policy_objective, value_objective
from training_core.rewards.reward import score
from training_core.rollout.engine import logprob_gap, require_same_policy, sync
from training_core.types import Experience, Prompt, Rollout, ScoredRollout

FINAL_METRICS = ("reward", "kl", "response_tokens")


@dataclass(frozen=True)
class PpoModels:
    """Everybody who takes part."""

    tokenizer: Any
    prompts: Sequence[Prompt]
    reward: Any
    reference: Any
    policy: Learner
    critic: Learner
    rollout_engine: Any


def train(config: PpoConfig, inputs: Inputs, context: Context) -> dict[str, float]:
    """Train the policy and save it as the artifact.

    Returns:
        The final metrics; see `stages.ppo.run`.
    """
    cast = _assemble(config, inputs)
    models = {"policy": cast.policy.engine.model, "critic": cast.critic.engine.model}
    engines = {"policy": cast.policy.engine, "critic": cast.critic.engine}
    first = resume(context, models, engines)
    save = saver(context, models, engines, keep=config.keep_checkpoints)
    for step in range(first, config.steps):
        metrics = _round(config, cast, step)
        context.sink.log(step + 1, metrics)
        context.sink.progress(
            step + 1, config.steps, f"reward {metrics['reward']:.3f}, KL {metrics['kl']:.2f}"
        )
        if context.should_stop():
            save(step + 1)
            raise StoppedError(
                f"stopped at step {step + 1} of {config.steps}; its checkpoint is saved"
            )
        if (step + 1) % config.save_every_steps == 0 and step + 1 < config.steps:
            save(step + 1)
    cast.rollout_engine.close()
    hub.save(models["policy"], cast.tokenizer, context.artifact_dir)
    return _summary(read_jsonl(context.attempt_dir / "metrics.jsonl"), config.steps)


def _round(config: PpoConfig, cast: PpoModels, step: int) -> dict[str, float]:
    started = time.monotonic()
    sync(cast.rollout_engine, cast.policy.engine.model, step)
    rollouts = _sample(config, cast, step)
    scored = score(cast.reward, rollouts, unscored_limit=config.unscored_limit)
    sampled = time.monotonic()
    experience = _experience(config, cast, scored)
    gap = logprob_gap(
        cast.policy.engine.model,
        [s.rollout for s in scored],
        experience.old_logprobs,
        temperature=config.rollouts.temperature,
        pad_id=pad_id(cast.tokenizer),
    )
    require_same_policy(gap, limit=config.rollouts.logprob_gap_limit, engine=cast.rollout_engine)
    minibatches = _minibatches(config, len(scored), step)
    updates = step * len(minibatches)
    learns = step >= config.critic_warmup_steps
    policy_metrics = cast.policy.update(experience, minibatches, updates) if learns else {}
    critic_metrics = cast.critic.update(experience, minibatches, updates)
    return {
        **_describe(scored, experience),
        **{f"policy_{name}": value for name, value in policy_metrics.items()},
        **{f"critic_{name}": value for name, value in critic_metrics.items()},
        "logprob_gap": gap.mean,
        "logprob_gap_largest": gap.largest,
        "unscored": float(len(rollouts) - len(scored)),
        "sample_seconds": sampled - started,
        "update_seconds": time.monotonic() - sampled,
    }


def _sample(config: PpoConfig, cast: PpoModels, step: int) -> list[Rollout]:
    epochs = config.steps * config.prompts_per_step / len(cast.prompts)
    indices = batch_indices(
        len(cast.prompts), config.prompts_per_step, epochs, seed=config.seed, step=step
    )
    groups = sample_groups(
        cast.rollout_engine,
        [cast.prompts[i] for i in indices],
        sampling_of(config.rollouts),
        group_size=config.group_size,
        seed=config.seed * 100_003 + step,
    )
    return [rollout for group in groups for rollout in group]


def _experience(config: PpoConfig, cast: PpoModels, scored: Sequence[ScoredRollout]) -> Experience:
    policy, critic = cast.policy.engine.model, cast.critic.engine.model
    return make_experience(
        scored,
        policy_logprobs(policy, config.rollouts.temperature, config.micro_batch_tokens),
        policy_logprobs(cast.reference, config.rollouts.temperature, config.micro_batch_tokens),
        critic_values(critic, config.micro_batch_tokens),
        kl_estimator=KL_ESTIMATORS[config.kl_estimator],
        kl_coef=config.kl_coef,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        pad_id=pad_id(cast.tokenizer),
        device=next(policy.parameters()).device,
    )


def _minibatches(config: PpoConfig, size: int, step: int) -> list[list[int]]:
    per_update = -(-size // config.updates_per_step)
    seed = config.seed * 100_003 + step
    return [
        batch_indices(size, per_update, config.epochs_per_step, seed=seed, step=i)
        for i in range(steps_in(size, per_update, config.epochs_per_step))
    ]


def _describe(scored: Sequence[ScoredRollout], experience: Experience) -> dict[str, float]:
    kl = (experience.old_logprobs - experience.ref_logprobs).sum(dim=1)
    return {
        "reward": fmean(s.reward for s in scored),
        "kl": float(kl.mean()),
        "response_tokens": fmean(len(s.rollout.response_ids) for s in scored),
        "finished_fraction": fmean(s.rollout.is_finished for s in scored),
    }


def _summary(curve: Sequence[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """From the whole curve on disk, which a resumed attempt has too."""
    points = [line["metrics"] for line in curve]
    tail = points[-max(1, steps // 10) :]
    means = {name: fmean(p[f"ppo/{name}"] for p in tail) for name in FINAL_METRICS}
    return {**means, "logprob_gap": max(p["ppo/logprob_gap"] for p in points)}


def _assemble(config: PpoConfig, inputs: Inputs) -> PpoModels:
    device = best_device()
    tokenizer = hub.load_tokenizer(inputs["policy"])
    policy = hub.load_policy(inputs["policy"]).to(device)
    critic = hub.load_scalar_model(inputs.get("reward_model", inputs["policy"])).to(device)
    updates = config.steps * config.updates_per_step * config.epochs_per_step
    loss = partial(ppo_clip, clip_low=config.clip_low, clip_high=config.clip_high)
    value_loss = partial(clipped_value_loss, clip=config.value_clip)
    return PpoModels(
        tokenizer=tokenizer,
        prompts=load_prompts(config.prompts, tokenizer, config.rollouts),
        reward=build_reward(config.reward, inputs, micro_batch_tokens=config.micro_batch_tokens),
        reference=hub.freeze(hub.load_policy(inputs["reference"])).to(device),
        policy=Learner(
            make_engine(policy, config.policy_optimizer, updates),
            policy_objective(loss, temperature=config.rollouts.temperature),
            config.micro_batch_tokens,
        ),
        critic=Learner(
            make_engine(critic, config.critic_optimizer, updates),
            value_objective(value_loss),
            config.micro_batch_tokens,
        ),
        rollout_engine=open_engine(config.rollouts, inputs["policy"], policy, tokenizer),
    )
