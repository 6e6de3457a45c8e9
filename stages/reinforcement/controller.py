"""The control loop of PPO and its relatives.

Each round: weight sync -> groups of scored rollouts -> shaped rewards -> what the models say about
them -> experience -> update.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from stages.canaries.running import keeps_earlier_results
from stages.configs.ppo_config import PpoConfig
from stages.configs.training_config import DeepSpeedEngineConfig
from stages.contract import Context, Inputs, Result
from stages.files import read_jsonl
from stages.reinforcement.best_policy import evaluate_policy, held_out_summary, load_exported
from stages.reinforcement.experience import EvaluatedRollouts, evaluate, make_experience
from stages.reinforcement.first_round import check_first_round
from stages.reinforcement.learners import cut
from stages.reinforcement.ppo_models import PpoModels, load_ppo_models
from stages.reinforcement.ppo_objectives import critic_objective_of, policy_objective_of
from stages.reinforcement.rollout_group import RolloutGroup
from stages.sampling.rollouts import PROBES
from stages.training.checkpointing import Checkpoints
from stages.training.resumable_steps import StepDone, run_steps
from stages.training.trained_model import save_model
from training_core.data.batching import even_batches
from training_core.data.chat import pad_id
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.rewards.reward import component_means
from training_core.rollout.engine import gap_between, logprob_gap, require_same_policy, sync
from training_core.types import Experience

log = logging.getLogger(__name__)

SHOWN = ("reward", "kl", "heldout_reward")
SECONDS = ("sync_seconds", "sample_seconds", "experience_seconds", "update_seconds")
FINAL_METRICS = ("reward", "kl", "response_tokens")


def train(config: PpoConfig, inputs: Inputs, context: Context) -> Result:
    """Train the policy and save it as the artifact.

    Returns:
        The final metrics, see `stages.ppo.run`, and the number of sampled tokens.
    """
    if isinstance(config.engine, DeepSpeedEngineConfig):
        size = config.engine.tensor_parallel_size
        context = replace(context, dist_info=replace(context.dist_info, tensor_parallel_size=size))
    ranks = context.dist_info
    models = load_ppo_models(config, inputs, ranks, context.cluster)
    saved = {name: learner.saved for name, learner in models.learners.items()}
    if config.reference_reset_steps and models.reference is not None:
        saved["reference"] = models.reference
    checkpoints = Checkpoints(
        context,
        models=saved,
        engines={name: learner.engine for name, learner in models.learners.items()},
        keep=config.keep_checkpoints,
        parts=models.parts,
        protected=tuple if models.evaluation is None else models.evaluation.best.steps,
    )

    def rounds(done: int) -> Iterator[StepDone]:
        if done == 0 and models.evaluation is not None:
            context.sink.log(0, evaluate_policy(models, 0)[0])
        is_checked = keeps_earlier_results(context)
        before_update = partial(check_first_round, config, inputs, models, context)
        for number in range(done, config.steps):
            if models.ends_at is not None:
                return
            first = number == 0 and not is_checked
            metrics = play_round(config, models, number, ranks, before_update if first else None)
            measured, must_save = evaluate_policy(models, number + 1)
            metrics |= measured
            shown = ", ".join(f"{n} {metrics[n]:.3f}" for n in SHOWN if n in metrics)
            yield StepDone(metrics, shown, must_save=must_save)

    run_steps(rounds, config.steps, checkpoints, context, save_every=config.save_every_steps)
    models.rollout_engine.close()
    for learner in models.learners.values():
        learner.engine.finish(only_first_rank=models.policy.average is None)
    last = models.ends_at or config.steps
    exported = load_exported(config, models, checkpoints, last)
    if models.policy.average is not None:
        models.policy.average.write_to(models.policy.model)
    save_model(models.policy.model, models.tokenizer, context)
    if not ranks.is_first:
        return Result()
    curve = read_jsonl(context.attempt.metrics)
    held_out = {}
    if config.evaluation is not None:
        held_out = held_out_summary(curve, config.evaluation, exported)
    in_rounds = sum(line["metrics"].get("ppo/sampled_tokens", 0) for line in curve)
    sampled_tokens = int(in_rounds + held_out.get("heldout_tokens", 0))
    return Result({**_summary(curve, last), **held_out}, sampled_tokens)


def play_round(
    config: PpoConfig,
    models: PpoModels,
    number: int,
    ranks: DistInfo = SINGLE_PROCESS,
    before_update: Callable[..., None] | None = None,
) -> dict[str, float]:
    """Run one round; first the rollout engine gets the policy's current weights.

    Args:
        config: of the stage.
        models: what the round uses.
        number: of the round, from 0.
        ranks: this process.
        before_update: (evaluation, gap) -> nothing; see `check_first_round`.

    Returns:
        The metrics, with the seconds of the parts: `sync` with its proof, `sample` with the
        rewards, `experience` (log-probabilities, values, advantages) and `update`.
    """
    times = [time.monotonic()]
    evaluation = experience = None
    with models.at_work():
        sync(models.rollout_engine, models.policy.engine.weights_to_send(), number)
        times.append(time.monotonic())
        collected = models.collector.collect()
        models.rollout_engine.sleep()
        times.append(time.monotonic())
        groups = models.shaper(collected.groups)
        metrics = {**collected.metrics, "kl_coef": models.kl_control.coef}
        if groups:
            rollouts = [s.rollout for group in groups for s in group.scored]
            evaluation = evaluate(
                rollouts, models.functions, pad_id=pad_id(models.tokenizer), device=models.device
            )
            metrics |= _require_same_policy(config, models, evaluation)
            if before_update is not None:
                before_update(evaluation=evaluation, gap=metrics.get("logprob_gap"))
    if evaluation is not None:
        metrics |= _describe(collected.groups, groups, evaluation, number)
        experience = make_experience(
            evaluation, groups, models.estimation, kl_coef=models.kl_control.in_reward
        )
    times.append(time.monotonic())
    if experience is not None:
        metrics |= _update(config, models, experience, number, ranks)
    if evaluation is not None:
        _adapt_kl(models, evaluation)
    _reset_reference(config, models, number)
    times.append(time.monotonic())
    seconds = (after - before for before, after in pairwise(times))
    return metrics | dict(zip(SECONDS, seconds, strict=True))


def _require_same_policy(
    config: PpoConfig, models: PpoModels, evaluation: EvaluatedRollouts
) -> dict[str, float]:
    """Raise if the rollout engine did not sample from the trained policy.

    Rollouts of earlier weights are left out. If the trainer has not computed the old
    log-probabilities, it computes those of a few rollouts for this.
    """
    engine, rollouts = models.rollout_engine, evaluation.rollouts
    rows = [i for i, r in enumerate(rollouts) if r.policy_version == engine.policy_version]
    if not rows:
        return {}
    if config.old_logprobs == "trainer":
        mask = evaluation.batch.loss_mask[rows]
        both = evaluation.old_logprobs, evaluation.sampler_logprobs
        gap = gap_between(*(logprobs[rows][mask] for logprobs in both))
    else:
        gap = logprob_gap(
            [rollouts[i] for i in rows[:PROBES]],
            models.logprobs,
            pad_id=pad_id(models.tokenizer),
            device=models.device,
        )
    require_same_policy(gap, limit=config.rollouts.logprob_gap_limit, engine=engine)
    return {"logprob_gap": gap.mean, "logprob_gap_largest": gap.largest}


def _update(
    config: PpoConfig,
    models: PpoModels,
    experience: Experience,
    number: int,
    ranks: DistInfo,
) -> dict[str, float]:
    """Train policy and critic; in the first `critic_warmup_steps` rounds only the critic."""
    minibatches = even_batches(
        len(experience.batch.input_ids),
        config.updates_per_step,
        config.epochs_per_step,
        seed=config.seed * 100_003 + number,
    )
    limits = config.micro_batch_tokens, ranks.data_world_size
    batches = [cut(experience, rows, *limits) for rows in minibatches]
    first_step = number * config.updates_per_step * config.epochs_per_step
    tokens = experience.batch.num_tokens * config.epochs_per_step
    metrics: dict[str, float] = {"tokens": float(tokens)}
    if number >= config.critic_warmup_steps:
        objective = policy_objective_of(config, models.kl_control.in_loss)
        mixed = models.mix.beside(batches, first_step) if models.mix else batches
        found = models.policy.update(objective, mixed, first_step)
        metrics |= {f"policy_{name}": value for name, value in found.items()}
    if models.critic is not None:
        found = models.critic.update(critic_objective_of(config), batches, first_step)
        metrics |= {f"critic_{name}": value for name, value in found.items()}
    return metrics


def _adapt_kl(models: PpoModels, evaluation: EvaluatedRollouts) -> None:
    """Adapt the KL coefficient of the next round to the KL of this one."""
    kl = evaluation.kl_per_response()
    if kl is not None:
        models.kl_control.update(kl, len(evaluation.rollouts))


def _reset_reference(config: PpoConfig, models: PpoModels, number: int) -> None:
    """After every `reference_reset_steps` rounds, give the reference the policy's weights."""
    every = config.reference_reset_steps
    if models.reference is not None and every and (number + 1) % every == 0:
        with models.policy.engine.gathered_weights():
            models.reference.load_state_dict(models.policy.model.state_dict())
        log.info("after round %d the policy became the reference", number + 1)


def _describe(
    groups: Sequence[RolloutGroup],
    shaped: Sequence[RolloutGroup],
    evaluation: EvaluatedRollouts,
    number: int,
) -> dict[str, float]:
    """Describe the rollouts of a round; the reward is the one before shaping."""
    kl = evaluation.kl_per_response()
    rollouts = evaluation.rollouts
    return {
        "reward": fmean(s.reward for group in groups for s in group.scored),
        "shaped_reward": fmean(s.reward for group in shaped for s in group.scored),
        **component_means([s for group in groups for s in group.scored]),
        "equal_groups": fmean(len({s.reward for s in group.scored}) == 1 for group in groups),
        **({} if kl is None else {"kl": kl}),
        "response_tokens": fmean(len(r.response_ids) for r in rollouts),
        "finished_fraction": fmean(r.is_finished for r in rollouts),
        "policy_lag": fmean(number - r.policy_version for r in rollouts),
    }


def _summary(curve: Sequence[Mapping[str, Any]], steps: int) -> dict[str, float]:
    """Average the last metrics of the full curve on disk, which includes earlier attempts."""
    points = [line["metrics"] for line in curve]
    tail = points[-max(1, steps // 10) :]
    found = {name: [p[f"ppo/{name}"] for p in tail if f"ppo/{name}" in p] for name in FINAL_METRICS}
    gaps = [p["ppo/logprob_gap"] for p in points if "ppo/logprob_gap" in p]
    means = {name: fmean(values) for name, values in found.items() if values}
    return {**means, **({"logprob_gap": max(gaps)} if gaps else {})}
