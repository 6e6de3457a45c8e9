"""Kahneman-Tversky optimisation: a policy is fitted to single responses, each good or bad."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stages.contract import Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.models import ModelOptions
from stages.settings.preference import Kto
from stages.settings.training import Training
from stages.sources import either

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stages.rated import Rated
    from stages.reference import Reference
    from training_core.types import Rated as RatedExample


class Config(StageConfig):
    """What a person writes about KTO."""

    loss: Kto = semantic(Kto(), "Loss on the response.")
    data: Data | None = semantic(None, "Rated responses; None takes the input `dataset`.")
    eval_data: Data | None = semantic(None, "Held-out responses for the `heldout_…` metrics.")
    threshold: float | None = semantic(
        None, "A response is good where its `score` is at least this; None reads `label`."
    )
    model: ModelOptions = semantic(ModelOptions(), "What the model is loaded as.")
    training: Training = semantic(
        Training(), "How the policy is fitted; a batch should have at least 16 rows (baseline)."
    )


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train the policy; the baseline of each step is measured on the whole batch before the cut.

    Metrics: `examples`, `desirable_fraction`, and with `eval_data` `heldout_margin`: mean implicit
    reward of desirable minus that of undesirable responses.
    """
    from stages.datasets import ratings
    from stages.encoding import encode_ratings
    from stages.engines import best_device
    from stages.offline import fit, save_model
    from stages.rated import rated_batches
    from stages.reference import Reference
    from training_core.algorithms.unpaired_losses import UNPAIRED_LOSSES
    from training_core.data import chat
    from training_core.models import hub
    from training_core.objectives.balanced import balanced, each_counts
    from training_core.objectives.unpaired import unpaired

    row = UNPAIRED_LOSSES[config.loss.name]
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id, limit = chat.pad_id(tokenizer), config.training.max_tokens
    source = either("kto.data", config.data, "dataset", inputs)
    read = partial(ratings, threshold=config.threshold)
    rows = encode_ratings(tokenizer, read(source), max_tokens=limit)
    heldout_rows = read(config.eval_data) if config.eval_data else []
    heldout = encode_ratings(tokenizer, heldout_rows, max_tokens=limit)

    options = config.model.load_options(seed=config.seed)
    policy = hub.load_policy(inputs["policy"], options=options).to(best_device())
    reference = Reference(policy, inputs, config.model, config.seed, context)
    budget = config.training.micro_batch_tokens
    train, test = (
        _with_reference(_rated(some, pad_id, config), reference, budget) for some in (rows, heldout)
    )
    loss = partial(row.function, **config.loss.model_dump(exclude={"name"}))
    objective = balanced(
        unpaired(loss, beta=config.loss.beta),
        config.model.moe_aux_loss_coef,
        batch_of=lambda batch: batch.batch,
        weights=each_counts(1.0),
    )

    def measure() -> Mapping[str, float]:
        return _measured(policy, test, config)

    before = measure()
    fit(
        policy,
        objective,
        rated_batches(
            policy,
            train,
            config.training,
            row.baseline,
            seed=config.seed,
            ranks=context.ranks,
        ),
        num_examples=len(rows),
        training=config.training,
        context=context,
        evaluate=measure if heldout else None,
        batches_ask_model=True,
    )
    save_model(policy, tokenizer, context)
    metrics = {
        "examples": float(len(rows)),
        "desirable_fraction": sum(r.is_desirable for r in rows) / len(rows),
        **{f"{name}_before": value for name, value in before.items()},
        **measure(),
    }
    return Result("policy", metrics)


def _rated(rows: Sequence[RatedExample], pad_id: int, config: Config) -> Rated:
    from stages.engines import best_device
    from stages.rated import Rated, mismatch

    examples = [row.example for row in rows]
    partners = mismatch(examples, seed=config.seed, max_tokens=config.training.max_tokens)
    return Rated(rows, pad_id, best_device(), partners)


def _with_reference(rated: Rated, reference: Reference, budget: int) -> Rated:
    from dataclasses import replace

    both = rated.with_mismatched()
    sums = reference.logprobs(
        both,
        [side for group in both.groups for side in group],
        batch_of=lambda batch: batch,
        columns=2,
        budget_tokens=budget,
    )
    return replace(rated, ref_logprobs=sums)


def _measured(policy: Any, rated: Rated, config: Config) -> Mapping[str, float]:
    """Mean implicit rewards of held-out responses; nothing where one kind is absent."""
    from stages.batches import over_all
    from training_core.models.causal_lm import sequence_logprobs

    desirable = [row.is_desirable for row in rated.rows]
    if not any(desirable) or all(desirable):
        return {}
    sums = over_all(
        rated,
        lambda batch: sequence_logprobs(policy, batch.batch),
        budget_tokens=config.training.micro_batch_tokens,
        columns=1,
    )[:, 0]
    rewards = (config.loss.beta * (sums - rated.references[:, 0])).tolist()
    good = [r for r, is_good in zip(rewards, desirable, strict=True) if is_good]
    bad = [r for r, is_good in zip(rewards, desirable, strict=True) if not is_good]
    means = {"desirable": sum(good) / len(good), "undesirable": sum(bad) / len(bad)}
    return {
        **{f"heldout_reward_{name}": value for name, value in means.items()},
        "heldout_margin": means["desirable"] - means["undesirable"],
    }
