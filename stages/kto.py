"""Kahneman-Tversky optimisation: a policy is fitted to single responses, each good or bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from stages.batches.encoding import encode_unpaired, unpaired_examples
from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Examples
from stages.batches.unpaired_batches import UnpairedExamples, mismatch, unpaired_batches
from stages.canaries.answers import answers_in
from stages.canaries.probe import Probe, dataset_probe, equal_reference_of, trained_logprobs
from stages.canaries.running import run_canaries
from stages.configs.kto_config import STAGE, KtoConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import UnpairedResponse, unpaired_responses
from stages.training.engines import best_device
from stages.training.fit import fit
from stages.training.heldout_metrics import before_and_after
from stages.training.reference_logprobs import Reference, reference_of
from stages.training.trained_model import TrainedModel
from training_core.algorithms.unpaired_losses import UNPAIRED_LOSSES
from training_core.data import chat
from training_core.errors import DataError
from training_core.loop import Objective
from training_core.models import hub
from training_core.models.causal_lm import sequence_logprobs
from training_core.objectives.balanced import balanced, each_counts
from training_core.objectives.unpaired import UnpairedBatch, unpaired
from training_core.types import UnpairedExample

CHECKED_ROWS = 32


def run(config: KtoConfig, inputs: Inputs, context: Context) -> Result:
    """Train the policy; each step measures its baseline on the whole batch before it is cut.

    Metrics: `examples`, `desirable_fraction`, and with `eval_data` `heldout_margin`: mean implicit
    reward of desirable minus that of undesirable responses.
    """
    entry = UNPAIRED_LOSSES[config.loss.name]
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    source = resolve_source("kto.data", config.data, "dataset", inputs)
    read = partial(unpaired_responses, threshold=config.threshold)
    encode = partial(encode_unpaired, tokenizer, **config.training.row_limits)
    source_rows = read(source)
    rows = _with_both_labels(encode(source_rows))
    heldout = encode(read(config.eval_data) if config.eval_data else [])

    loaded = hub.load_policy(inputs["policy"], options=config.model.load_options(seed=config.seed))
    policy = TrainedModel(loaded, len(rows), config.training, context)
    reference = reference_of(policy, inputs, config.model, config.seed)
    budget = config.training.micro_batch_tokens
    train, test = (
        _with_reference(_unpaired(some, pad_id, config), reference, budget)
        for some in (rows, heldout)
    )
    loss = partial(entry.function, **config.loss.model_dump(exclude={"name"}))
    objective = balanced(
        unpaired(loss, beta=config.loss.beta),
        config.model.moe_aux_loss_coef,
        weights=each_counts(1.0),
    )
    measure = partial(_measured, policy, test, config)
    before = measure()
    probe = partial(_probe, config, tokenizer, policy, train, objective, rows=source_rows)
    starts_equal = inputs["policy"] == inputs["reference"]
    run_canaries(STAGE, config, context, policy, partial(probe, starts_equal=starts_equal))
    fit(
        policy,
        objective,
        unpaired_batches(
            policy,
            train,
            config.training,
            entry.baseline,
            seed=config.seed,
            dist_info=context.dist_info,
        ),
        evaluate=measure if heldout else None,
        batches_use_model=True,
    )
    metrics = {
        "examples": float(len(rows)),
        "desirable_fraction": sum(r.is_desirable for r in rows) / len(rows),
        **before_and_after(before, measure()),
    }
    policy.save(tokenizer)
    return Result(metrics)


def _probe(
    config: KtoConfig,
    tokenizer: PreTrainedTokenizerBase,
    policy: TrainedModel,
    rated: UnpairedExamples,
    objective: Objective[UnpairedBatch],
    *,
    rows: Sequence[UnpairedResponse],
    starts_equal: bool,
) -> Probe:
    """Return what the canaries look at."""
    start, budget = None, config.training.micro_batch_tokens
    if starts_equal:
        some = list(range(min(CHECKED_ROWS, len(rated.rows))))
        examples = [rated.rows[i].example for i in some]
        collator = Examples(examples, rated.pad_id, rated.device)
        start = equal_reference_of(policy, collator, examples, rated.references[some, :1], budget)
    encode = partial(unpaired_examples, tokenizer, max_tokens=config.training.max_tokens)
    return dataset_probe(
        policy,
        tokenizer,
        rated,
        rated.rows,
        objective,
        outputs=trained_logprobs,
        budget_tokens=budget,
        answers=answers_in(rows, encode, rated.rows),
        equal_reference=start,
    )


def _unpaired(rows: Sequence[UnpairedExample], pad_id: int, config: KtoConfig) -> UnpairedExamples:

    examples = [row.example for row in rows]
    partners = mismatch(examples, seed=config.seed, max_tokens=config.training.max_tokens)
    return UnpairedExamples(rows, pad_id, best_device(), partners)


def _with_reference(rated: UnpairedExamples, reference: Reference, budget: int) -> UnpairedExamples:

    both = rated.with_mismatched()
    sums = reference.logprobs(
        both,
        [side for group in both.groups for side in group],
        columns=2,
        budget_tokens=budget,
    )
    return replace(rated, ref_logprobs=sums)


def _with_both_labels(rows: Sequence[UnpairedExample]) -> Sequence[UnpairedExample]:
    """Refuse responses of one kind: the policy would only learn to raise, or to lower, them all."""
    if len({row.is_desirable for row in rows}) == 1:
        kind = "desirable" if rows[0].is_desirable else "undesirable"
        raise DataError(
            f"all {len(rows)} responses are {kind}, and KTO needs both kinds; give others, too, or "
            "change `threshold`"
        )
    return rows


def _measured(
    policy: TrainedModel, rated: UnpairedExamples, config: KtoConfig
) -> Mapping[str, float]:
    """Mean implicit rewards of held-out responses; empty if one kind is missing."""
    desirable = [row.is_desirable for row in rated.rows]
    if not any(desirable) or all(desirable):
        return {}

    def sums_of(model: nn.Module, batch: UnpairedBatch) -> Tensor:
        return sequence_logprobs(model, batch.batch)

    sums = over_all(
        policy,
        rated,
        sums_of,
        budget_tokens=config.training.micro_batch_tokens,
        columns=1,
        dist_info=policy.context.dist_info,
    )[:, 0]
    rewards = (config.loss.beta * (sums - rated.references[:, 0])).tolist()
    good = [r for r, is_good in zip(rewards, desirable, strict=True) if is_good]
    bad = [r for r, is_good in zip(rewards, desirable, strict=True) if not is_good]
    means = {"desirable": sum(good) / len(good), "undesirable": sum(bad) / len(bad)}
    return {
        **{f"heldout_reward_{name}": value for name, value in means.items()},
        "heldout_margin": means["desirable"] - means["undesirable"],
    }
