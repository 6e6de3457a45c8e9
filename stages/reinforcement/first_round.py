"""The canaries of reinforcement learning: the first round, before its update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from stages.canaries.probe import (
    FirstUpdate,
    Probe,
    chosen_items,
    rounding_of,
    trained_logprobs,
)
from stages.canaries.running import check
from stages.configs.ppo_config import STAGE, PpoConfig
from stages.contract import Context, Inputs
from stages.reinforcement.experience import EvaluatedRollouts
from stages.reinforcement.ppo_models import PpoModels
from stages.reinforcement.ppo_objectives import policy_objective_of
from training_core.types import Example, Experience

CHECKED_ROLLOUTS = 8


def check_first_round(
    config: PpoConfig,
    inputs: Inputs,
    models: PpoModels,
    context: Context,
    *,
    evaluation: EvaluatedRollouts,
    gap: float | None,
) -> None:
    """Run the canaries; every rank must call it, and all get the same result.

    Args:
        config: of the stage.
        inputs: tell whether the reference is the policy.
        models: before the first update, inside of `models.at_work()`.
        context: its attempt keeps the results.
        evaluation: the rollouts of the first round.
        gap: mean distance of log-probabilities, sampler to trainer, in nats; None if unknown.

    Raises:
        CanaryError: for the first canary that fails.
    """
    engine, rounding = models.policy.engine, rounding_of(models.policy.model)
    examples = [rollout.example() for rollout in evaluation.rollouts]
    chosen = chosen_items([len(example) for example in examples], config.micro_batch_tokens)
    mask = evaluation.batch.loss_mask
    is_same = inputs.get("reference") == inputs["policy"]
    recomputes = config.old_logprobs == "trainer"
    limit = rounding if recomputes else config.rollouts.logprob_gap_limit
    references = evaluation.ref_logprobs if is_same else None
    probe = Probe(
        models.tokenizer,
        models.device,
        rounding,
        sequences=prompts_in(examples),
        computed=[examples[i] for i in chosen],
        compute=partial(engine.compute, trained_logprobs),
        first_update=FirstUpdate(
            old_logprobs=evaluation.old_logprobs[mask],
            log_ratios=_log_ratios(config, models, evaluation),
            ref_logprobs=None if references is None else references[mask],
            sampler_gap=gap,
            sampler_limit=config.rollouts.logprob_gap_limit,
            ratio_limit=limit,
        ),
    )
    check(STAGE.canaries, context, probe, skip=config.skip_canaries)


def prompts_in(sampled: Sequence[Example]) -> list[Example]:
    """Return what stands before the responses: a policy may sample any token, template ones too."""
    return [Example(one.prompt_ids, (0,) * len(one.prompt_ids)) for one in sampled]


def _log_ratios(config: PpoConfig, models: PpoModels, evaluation: EvaluatedRollouts) -> Tensor:
    """Return the mean log-ratio of policy to old policy that the objective sees, per rollout."""
    objective = policy_objective_of(config, models.kl_control.in_loss)
    found: list[float] = []
    for row in range(min(CHECKED_ROLLOUTS, len(evaluation.rollouts))):
        loss = models.policy.engine.compute(objective, _alone(evaluation, [row]))
        found.append(-loss.metrics["update_kl"].value)
    return torch.tensor(found, dtype=torch.float64)


def _alone(evaluation: EvaluatedRollouts, rows: Sequence[int]) -> Experience:
    """Return some rollouts as experience without advantages."""
    zeros = torch.zeros_like(evaluation.old_logprobs)
    whole = Experience(
        evaluation.batch,
        evaluation.old_logprobs,
        advantages=zeros,
        returns=zeros,
        values=zeros,
        ref_logprobs=evaluation.ref_logprobs,
    )
    return whole.rows(torch.tensor(rows, device=zeros.device))
