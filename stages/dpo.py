"""Direct preference optimisation and its family: a policy is fitted to pairs of responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from stages.batches.encoding import encode_pairs
from stages.batches.micro_batches import Pairs, micro_batches, over_all, rounding, sharing_pays
from stages.configs.dpo_config import DpoConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import Preference, preferences
from stages.sampling.selection import without_repeats
from stages.training.engines import best_device
from stages.training.fit import fit, save_model
from stages.training.heldout_metrics import before_and_after, pair_metrics
from stages.training.reference_logprobs import Reference, reference_of
from training_core.algorithms.pair_logprobs import PairLogprobs
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.data import chat
from training_core.errors import ConfigError, MismatchError
from training_core.models import hub
from training_core.models.causal_lm import packs_rows, sequence_logprobs
from training_core.models.language_model import LanguageModel
from training_core.objectives.balanced import balanced, each_counts
from training_core.objectives.preference import PairBatch, pair_logprobs, preference

CHECKED_PAIRS = 32
HALF_GAP = 0.05
"""Largest mean log-ratio per token in half precision, where sums are inexact; in nats."""


Rewards = Callable[[PairLogprobs], tuple[Tensor, Tensor]]


def run(config: DpoConfig, inputs: Inputs, context: Context) -> Result:
    """Train the policy; the reference's log-probabilities are computed once, before the first step.

    Metrics: `train_pairs`, `accuracy` (share of pairs whose chosen implicit reward is larger), and
    with `eval_data` `heldout_accuracy`, `heldout_margin`, and the same two before training.
    """
    entry = PREFERENCE_LOSSES[config.loss.entry]
    if entry.needs_reference and "reference" not in inputs:
        raise ConfigError(f"loss '{config.loss.entry}' needs the input 'reference'; give one")
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    rows, repeated = _rows(config, inputs)
    encode = partial(encode_pairs, tokenizer, **config.training.row_limits)
    pairs = encode(rows)
    heldout_rows = preferences(config.eval_data) if config.eval_data else []
    heldout = encode(heldout_rows)

    options = config.model.load_options(seed=config.seed)
    policy = hub.load_policy(inputs["policy"], options=options).to(best_device())
    shares = sharing_pays(policy, pairs, pad_id, sequence_logprobs, is_sum=True)
    packs = packs_rows(policy)
    train, test = (Pairs(some, pad_id, policy.device, shares, packs) for some in (pairs, heldout))
    budget = config.training.micro_batch_tokens
    if entry.needs_reference:
        reference = reference_of(policy, inputs, config.model, config.seed, context)
        train, test = (_with_reference(each, reference, budget) for each in (train, test))
    if entry.needs_reference and inputs["policy"] == inputs["reference"]:
        _require_no_preference_yet(policy, train, context, budget)

    rewards = partial(implicit_rewards, entry, beta=config.loss.beta)
    loss = partial(entry.function, **config.loss.hyperparameters)
    objective = balanced(
        preference(loss, rewards, nll_coef=config.nll_coef),
        config.model.moe_aux_loss_coef,
        weights=each_counts(0.5),
    )

    def measure() -> Mapping[str, float]:
        found = _measured(policy, test, rewards, budget)
        return {f"heldout_{name}": value for name, value in found.items()}

    before = measure()
    fit(
        policy,
        objective,
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        num_examples=len(pairs),
        training=config.training,
        context=context,
        evaluate=measure if heldout else None,
    )
    save_model(policy, tokenizer, context)
    metrics = {
        "train_pairs": float(len(pairs)),
        "duplicates": float(repeated),
        "accuracy": _measured(policy, train, rewards, budget)["accuracy"],
        **before_and_after(before, measure()),
    }
    return Result(metrics)


def _rows(config: DpoConfig, inputs: Inputs) -> tuple[list[Preference], int]:
    """Return the pairs of all given datasets, and the number of duplicates.

    In iterative DPO, the pairs of earlier rounds are the inputs `dataset_…`.
    """
    sources = [resolve_source("dpo.data", config.data, "dataset", inputs)]
    sources += [inputs[role] for role in sorted(inputs) if role.startswith("dataset_")]
    rows = [row for source in sources for row in preferences(source)]
    kept = without_repeats(rows, lambda row: (repr(row.prompt), row.chosen, row.rejected))
    return kept, len(rows) - len(kept)


def _with_reference(pairs: Pairs, reference: Reference, budget: int) -> Pairs:

    sums = reference.logprobs(
        pairs,
        [side for pair in pairs.pairs for side in (pair.chosen, pair.rejected)],
        columns=2,
        budget_tokens=budget,
    )
    return replace(pairs, ref_logprobs=sums)


def _measured(
    policy: LanguageModel, pairs: Pairs, rewards: Rewards, budget: int
) -> Mapping[str, float]:
    """Accuracy and margin of the implicit rewards; empty if there are no pairs."""

    def both(batch: PairBatch) -> torch.Tensor:
        known: PairLogprobs = pair_logprobs(policy, batch)
        return torch.cat(rewards(known))

    if not pairs.pairs:
        return {}
    return pair_metrics(over_all(pairs, both, budget_tokens=budget, columns=2))


def _require_no_preference_yet(
    policy: LanguageModel, pairs: Pairs, context: Context, budget: int
) -> None:
    """Check that the DPO loss starts at ln 2 if policy and reference are the same model."""
    if context.earlier_attempts or not pairs.pairs or pairs.ref_logprobs is None:
        return
    some = replace(
        pairs, pairs=pairs.pairs[:CHECKED_PAIRS], ref_logprobs=pairs.ref_logprobs[:CHECKED_PAIRS]
    )

    @torch.no_grad()
    def both(batch: PairBatch) -> torch.Tensor:
        known = pair_logprobs(policy, batch)
        return torch.cat((known.chosen, known.rejected))

    now = over_all(some, both, budget_tokens=budget, columns=2, dist_info=context.dist_info)
    ratios = now - pairs.ref_logprobs[:CHECKED_PAIRS]
    loss = float(torch.nn.functional.softplus(ratios[:, 1] - ratios[:, 0]).mean())
    is_half = policy.dtype in (torch.bfloat16, torch.float16)
    sides = [side for pair in some.pairs for side in (pair.chosen, pair.rejected)]
    tokens = sum(sum(side.loss_mask) for side in sides)
    gap = float(ratios.abs().sum()) / tokens if is_half else abs(loss - math.log(2))
    if not gap <= (HALF_GAP if is_half else rounding(policy.dtype, sides)):
        raise MismatchError(
            "policy and reference are one model, so the DPO loss must start at ln 2 = 0.6931, "
            f"found {loss:.4f} (torch {torch.__version__}): "
            "the log-probabilities of the reference are wrong; please report this bug"
        )
