"""Direct preference optimisation and its family: a policy is fitted to pairs of responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from stages.batches.encoding import encode_pairs, pair_examples
from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Pairs, micro_batches, sharing_pays
from stages.canaries.answers import answers_in
from stages.canaries.probe import Probe, dataset_probe, equal_reference_of, trained_logprobs
from stages.canaries.running import run_canaries
from stages.configs.dpo_config import STAGE, DpoConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import Preference, preferences
from stages.sampling.selection import without_repeats
from stages.training.fit import fit
from stages.training.heldout_metrics import before_and_after, pair_metrics
from stages.training.reference_logprobs import Reference, reference_of
from stages.training.trained_model import TrainedModel
from training_core.algorithms.pair_logprobs import PairLogprobs
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.data import chat
from training_core.errors import ConfigError
from training_core.loop import Objective
from training_core.models import hub
from training_core.models.causal_lm import packs_rows, sequence_logprobs
from training_core.objectives.balanced import balanced, each_counts
from training_core.objectives.preference import PairBatch, pair_logprobs, preference

CHECKED_PAIRS = 32

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

    loaded = hub.load_policy(inputs["policy"], options=config.model.load_options(seed=config.seed))
    policy = TrainedModel(loaded, len(pairs), config.training, context)
    shares = sharing_pays(policy, pairs, pad_id, sequence_logprobs, is_sum=True)
    packs = packs_rows(policy.model)
    train, test = (Pairs(some, pad_id, policy.device, shares, packs) for some in (pairs, heldout))
    budget = config.training.micro_batch_tokens
    if entry.needs_reference:
        reference = reference_of(policy, inputs, config.model, config.seed)
        train, test = (_with_reference(each, reference, budget) for each in (train, test))

    rewards = partial(implicit_rewards, entry, beta=config.loss.beta)
    loss = partial(entry.function, **config.loss.hyperparameters)
    objective = balanced(
        preference(loss, rewards, nll_coef=config.nll_coef),
        config.model.moe_aux_loss_coef,
        weights=each_counts(0.5),
    )

    def measure() -> Mapping[str, float]:
        found = _measured(policy, test, rewards)
        return {f"heldout_{name}": value for name, value in found.items()}

    before = measure()
    starts_equal = entry.needs_reference and inputs["policy"] == inputs["reference"]
    probe = partial(_probe, config, tokenizer, policy, train, objective, rows=rows)
    run_canaries(STAGE, config, context, policy, partial(probe, starts_equal=starts_equal))
    fit(
        policy,
        objective,
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        evaluate=measure if heldout else None,
    )
    metrics = {
        "train_pairs": float(len(pairs)),
        "duplicates": float(repeated),
        "accuracy": _measured(policy, train, rewards)["accuracy"],
        **before_and_after(before, measure()),
    }
    policy.save(tokenizer)
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


def _measured(policy: TrainedModel, pairs: Pairs, rewards: Rewards) -> Mapping[str, float]:
    """Accuracy and margin of the implicit rewards; empty if there are no pairs."""

    def both(model: nn.Module, batch: PairBatch) -> Tensor:
        known: PairLogprobs = pair_logprobs(model, batch)
        return torch.cat(rewards(known))

    if not pairs.pairs:
        return {}
    budget, ranks = policy.training.micro_batch_tokens, policy.context.dist_info
    found = over_all(policy, pairs, both, budget_tokens=budget, columns=2, dist_info=ranks)
    return pair_metrics(found)


def _probe(
    config: DpoConfig,
    tokenizer: PreTrainedTokenizerBase,
    policy: TrainedModel,
    pairs: Pairs,
    objective: Objective[PairBatch],
    *,
    rows: Sequence[Preference],
    starts_equal: bool,
) -> Probe:
    """Return what the canaries look at; the loss of an equal reference must start at ln 2."""
    start, budget = None, config.training.micro_batch_tokens
    if starts_equal and pairs.ref_logprobs is not None:
        some, known = pairs.pairs[:CHECKED_PAIRS], pairs.ref_logprobs[:CHECKED_PAIRS]
        first = replace(pairs, pairs=some, ref_logprobs=known)
        start = equal_reference_of(policy, first, some, known, budget)
    encode = partial(pair_examples, tokenizer, max_tokens=config.training.max_tokens)
    return dataset_probe(
        policy,
        tokenizer,
        pairs,
        pairs.pairs,
        objective,
        outputs=trained_logprobs,
        budget_tokens=budget,
        answers=answers_in(rows, encode, pairs.pairs),
        equal_reference=start,
    )
