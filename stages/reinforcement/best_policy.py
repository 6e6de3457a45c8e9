"""Which of the evaluated weights of PPO's policy become the artifact."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stages.configs.ppo_config import PpoConfig
from stages.configs.ppo_evaluation_config import PpoEvaluationConfig
from stages.reinforcement.ppo_models import PpoModels
from stages.training.checkpointing import Checkpoints
from training_core.rollout.engine import sync

log = logging.getLogger(__name__)

NOT_OF_THE_ARTIFACT = ("heldout_tokens", "heldout_seconds", "heldout_parted")


def evaluate_policy(models: PpoModels, done: int) -> tuple[dict[str, float], bool]:
    """Evaluate the policy on held-out prompts, if that is due after `done` rounds.

    A weight average is evaluated in place of the weights, because it becomes the artifact.

    Returns:
        The metrics, and whether to keep these weights: they are the best so far, or the last
        because the training ends here. Those before the first round are compared with none: they
        are the input of the stage.
    """
    evaluation = models.evaluation
    if evaluation is None or not evaluation.is_due(done):
        return {}, False
    started = time.monotonic()
    with models.averaged_policy() as policy:
        sync(models.rollout_engine, policy, done)
        measured = evaluation.measure(done)
    is_best = done > 0 and evaluation.best.takes(done, measured)
    must_save = is_best or evaluation.ends_at == done
    return {**measured, "heldout_seconds": time.monotonic() - started}, must_save


def load_exported(config: PpoConfig, models: PpoModels, checkpoints: Checkpoints, last: int) -> int:
    """Give the policy the weights that `evaluation.export` selects, and return their round.

    Args:
        config: of the stage.
        models: the policy has the weights after the last round.
        checkpoints: have the best weights.
        last: number of the last round.

    Raises:
        IntegrityError: if the checkpoint of the best weights is missing or damaged.
    """
    evaluation = models.evaluation
    if evaluation is None or config.evaluation is None or config.evaluation.export == "last":
        return last
    best = evaluation.best.step
    if best is None or best == last:
        return last
    state = checkpoints.load_step(best, "policy")
    if models.policy.average is not None:
        models.policy.average.load_state_dict(state["parts"]["average"])
    log.info(
        "the weights of round %d of %d become the artifact: %s %.4f is the best of all evaluations",
        best,
        last,
        config.evaluation.best_metric,
        evaluation.best.value,
    )
    return best


def held_out_summary(
    curve: Sequence[Mapping[str, Any]], evaluation: PpoEvaluationConfig, exported: int
) -> dict[str, float]:
    """Return the held-out metrics of the artifact, and what all evaluations together took.

    Args:
        curve: the lines of `metrics.jsonl`, earlier attempts included.
        evaluation: the block of the config.
        exported: round whose weights are the artifact.

    Returns:
        The metrics of that round; `…_before` of the input policy; `exported_step`, and `best_step`,
        where `best_metric` was highest first; `parted_step`, after which the reward and the judge
        first had parted; `heldout_tokens`.
    """
    measured = {
        line["step"]: {name.removeprefix("ppo/"): value for name, value in line["metrics"].items()}
        for line in curve
        if "ppo/heldout_tokens" in line["metrics"]
    }
    after = {step: found for step, found in measured.items() if step > 0}
    best = max(after, key=lambda step: (after[step][evaluation.best_metric], -step))
    parted = [float(step) for step, found in after.items() if found.get("heldout_parted")]
    chosen = {n: v for n, v in measured[exported].items() if n.startswith("heldout_")}
    return {
        **{name: value for name, value in chosen.items() if name not in NOT_OF_THE_ARTIFACT},
        **{f"{n}_before": measured[0][n] for n in evaluation.metrics if n in measured[0]},
        "best_step": float(best),
        "exported_step": float(exported),
        **({"parted_step": parted[0]} if parted else {}),
        "heldout_tokens": sum(found["heldout_tokens"] for found in measured.values()),
    }
