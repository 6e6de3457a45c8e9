"""The control loop of PPO.

Prompts -> rollouts -> rewards -> experience -> update -> weight sync.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from stages.configs.ppo_config import PpoConfig
from stages.contract import Context, Inputs
from stages.files import read_jsonl
from stages.reinforcement.experience import make_experience
from stages.reinforcement.learners import critic_values, policy_logprobs
from stages.reinforcement.ppo_models import PpoModels, load_ppo_models
from stages.sampling.rollouts import sample_groups, sampling_of
from stages.training.checkpointing import Checkpoints
from stages.training.fit import save_model
from stages.training.step_loop import StepDone, make_steps
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.data.batching import batch_indices, steps_in
from training_core.data.chat import pad_id
from training_core.rewards.reward import score
from training_core.rollout.engine import LogprobGap, logprob_gap, require_same_policy, sync
from training_core.types import Experience, Prompt, Rollout, ScoredRollout

FINAL_METRICS = ("reward", "kl", "response_tokens")


def train(config: PpoConfig, inputs: Inputs, context: Context) -> dict[str, float]:
    """Train the policy and save it as the artifact.

    Returns:
        The final metrics; see `stages.ppo.run`.
    """
    models = load_ppo_models(config, inputs)
    learners = {"policy": models.policy, "critic": models.critic}
    checkpoints = Checkpoints(
        context,
        models={name: learner.model for name, learner in learners.items()},
        engines={name: learner.engine for name, learner in learners.items()},
        keep=config.keep_checkpoints,
    )

    def rounds(done: int) -> Iterator[StepDone]:
        for number in range(done, config.steps):
            metrics = _round(config, models, number)
            yield StepDone(metrics, f"reward {metrics['reward']:.3f}, KL {metrics['kl']:.2f}")

    make_steps(rounds, config.steps, checkpoints, context, save_every=config.save_every_steps)
    models.rollout_engine.close()
    save_model(models.policy.model, models.tokenizer, context)
    return _summary(read_jsonl(context.attempt.metrics), config.steps)


def _round(config: PpoConfig, models: PpoModels, number: int) -> dict[str, float]:
    """Run one round; first the rollout engine gets the policy's current weights."""
    started = time.monotonic()
    sync(models.rollout_engine, models.policy.model, number)
    prompts = _prompts(config, models.prompts, number)
    rollouts = _sample(config, models, prompts, number)
    scored = score(models.reward, rollouts, unscored_limit=config.unscored_limit)
    sampled = time.monotonic()
    experience = _experience(config, models, scored)
    gap = _require_same_policy(config, models, scored, experience)
    updated = _update(config, models, experience, number)
    return {
        **_describe(scored, experience),
        **updated,
        "logprob_gap": gap.mean,
        "logprob_gap_largest": gap.largest,
        "unscored": float(len(rollouts) - len(scored)),
        "sample_seconds": sampled - started,
        "update_seconds": time.monotonic() - sampled,
    }


def _prompts(config: PpoConfig, prompts: Sequence[Prompt], number: int) -> list[Prompt]:
    """Return the prompts of a round."""
    epochs = config.steps * config.prompts_per_step / len(prompts)
    indices = batch_indices(
        len(prompts), config.prompts_per_step, epochs, seed=config.seed, step=number
    )
    return [prompts[i] for i in indices]


def _sample(
    config: PpoConfig, models: PpoModels, prompts: Sequence[Prompt], number: int
) -> list[Rollout]:
    groups = sample_groups(
        models.rollout_engine,
        prompts,
        sampling_of(config.rollouts),
        group_size=config.group_size,
        seed=config.seed * 100_003 + number,
    )
    return [rollout for group in groups for rollout in group]


def _experience(
    config: PpoConfig, models: PpoModels, scored: Sequence[ScoredRollout]
) -> Experience:
    temperature, budget = config.rollouts.temperature, config.micro_batch_tokens
    return make_experience(
        scored,
        policy_logprobs(models.policy.model, temperature, budget),
        policy_logprobs(models.reference, temperature, budget),
        critic_values(models.critic.model, budget),
        kl_estimator=KL_ESTIMATORS[config.kl_estimator],
        kl_coef=config.kl_coef,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        pad_id=pad_id(models.tokenizer),
        device=models.device,
    )


def _require_same_policy(
    config: PpoConfig,
    models: PpoModels,
    scored: Sequence[ScoredRollout],
    experience: Experience,
) -> LogprobGap:
    """Raise if the rollout engine did not sample from the trained policy."""
    gap = logprob_gap(
        models.policy.model,
        [s.rollout for s in scored],
        experience.old_logprobs,
        temperature=config.rollouts.temperature,
        pad_id=pad_id(models.tokenizer),
    )
    limit = config.rollouts.logprob_gap_limit
    require_same_policy(gap, limit=limit, engine=models.rollout_engine)
    return gap


def _update(
    config: PpoConfig, models: PpoModels, experience: Experience, number: int
) -> dict[str, float]:
    """Train policy and critic; in the first `critic_warmup_steps` rounds only the critic."""
    minibatches = _minibatches(config, len(experience.batch.input_ids), number)
    first_step = number * len(minibatches)
    learns = number >= config.critic_warmup_steps
    of_policy = models.policy.update(experience, minibatches, first_step) if learns else {}
    of_critic = models.critic.update(experience, minibatches, first_step)
    return {
        **{f"policy_{name}": value for name, value in of_policy.items()},
        **{f"critic_{name}": value for name, value in of_critic.items()},
    }


def _minibatches(config: PpoConfig, size: int, number: int) -> list[list[int]]:
    per_update = -(-size // config.updates_per_step)
    seed = config.seed * 100_003 + number
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
    """Average the last metrics of the full curve on disk, which includes earlier attempts."""
    points = [line["metrics"] for line in curve]
    tail = points[-max(1, steps // 10) :]
    means = {name: fmean(p[f"ppo/{name}"] for p in tail) for name in FINAL_METRICS}
    return {**means, "logprob_gap": max(p["ppo/logprob_gap"] for p in points)}
