"""Distillation: a student follows a teacher, on given responses and on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from torch import nn
from transformers import PreTrainedTokenizerBase

from stages.batches.encoding import demonstration_examples, encode_demonstrations
from stages.batches.measured_items import measured
from stages.batches.micro_batches import Examples
from stages.canaries.answers import answers_in
from stages.canaries.probe import Probe, dataset_probe, trained_logprobs
from stages.canaries.running import run_canaries
from stages.configs.distillation_config import STAGE, DistillationConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import Demonstration, demonstrations
from stages.sampling.on_policy import mixed_batches
from stages.training.fit import fit
from stages.training.heldout_metrics import before_and_after
from stages.training.reference_logprobs import frozen_beside
from stages.training.trained_model import TrainedModel
from training_core.algorithms.distillation_losses import DIVERGENCES
from training_core.data import chat
from training_core.errors import ConfigError
from training_core.loop import Objective
from training_core.models import hub
from training_core.models.causal_lm import packs_rows
from training_core.objectives.balanced import balanced
from training_core.objectives.divergence import distillation
from training_core.types import Batch, Mean


def run(config: DistillationConfig, inputs: Inputs, context: Context) -> Result:
    """Train the student, the input `policy`, to follow the input `teacher`.

    Metrics: `examples`, and with `eval_data` `heldout_divergence_before` and `heldout_divergence`
    in nats per token.
    """
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    rows = demonstrations(resolve_source("distillation.data", config.data, "dataset", inputs))
    encode = partial(encode_demonstrations, tokenizer, **config.training.row_limits)
    examples = encode(rows)
    heldout = encode(demonstrations(config.eval_data) if config.eval_data else [])

    loaded = hub.load_policy(inputs["policy"], options=config.model.load_options(seed=config.seed))
    student = TrainedModel(loaded, len(examples), config.training, context)
    plain = config.model.untrained().load_options(seed=config.seed)
    teacher = frozen_beside(student, hub.load_policy(inputs["teacher"], options=plain))
    _require_one_vocabulary(tokenizer, hub.load_tokenizer(inputs["teacher"]))
    packs = packs_rows(student.model) and packs_rows(teacher.model)
    train, test = (Examples(some, pad_id, student.device, packs) for some in (examples, heldout))
    objective = distillation(
        teacher,
        DIVERGENCES[config.divergence.name],
        temperature=config.temperature,
        nll_coef=config.nll_coef,
        **config.divergence.model_dump(exclude={"name"}),
    )

    def measure() -> Mapping[str, float]:
        return {"heldout_divergence": _mean_divergence(objective, student, test)}

    before = measure() if heldout else {}
    whole = balanced(objective, config.model.moe_aux_loss_coef)
    probe = partial(_probe, config, tokenizer, student, train, whole, rows=rows)
    run_canaries(STAGE, config, context, student, probe)
    fit(
        student,
        whole,
        mixed_batches(
            student,
            tokenizer,
            train,
            fraction=config.on_policy_fraction,
            rollouts=config.rollouts,
            seed=config.seed,
            directory=inputs["policy"],
        ),
        evaluate=measure if heldout else None,
        batches_use_model=config.on_policy_fraction > 0,
    )
    metrics = {"examples": float(len(examples))}
    if heldout:
        metrics |= before_and_after(before, measure())
    student.save(tokenizer)
    return Result(metrics)


def _probe(
    config: DistillationConfig,
    tokenizer: PreTrainedTokenizerBase,
    student: TrainedModel,
    train: Examples,
    objective: Objective[Batch],
    *,
    rows: Sequence[Demonstration],
) -> Probe:
    """Return what the canaries look at."""
    encode = partial(demonstration_examples, tokenizer, max_tokens=config.training.max_tokens)
    return dataset_probe(
        student,
        tokenizer,
        train,
        train.examples,
        objective,
        outputs=trained_logprobs,
        budget_tokens=config.training.micro_batch_tokens,
        answers=answers_in(rows, encode, train.examples),
    )


def _require_one_vocabulary(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase
) -> None:
    """Refuse different vocabularies: distributions over different tokens cannot be compared."""
    if student.get_vocab() != teacher.get_vocab():
        raise ConfigError(
            "student and teacher must have one vocabulary, found "
            f"{len(student)} and {len(teacher)} tokens that are not the same; "
            "choose a teacher of the student's family"
        )


def _mean_divergence(
    objective: Objective[Batch], student: TrainedModel, examples: Examples
) -> float:

    def divergence(model: nn.Module, batch: Batch) -> Mean:
        return objective(model, batch).metrics["divergence"]

    budget, ranks = student.training.micro_batch_tokens, student.context.dist_info
    parts = measured(student, examples, divergence, budget_tokens=budget, dist_info=ranks)
    count = sum(mean.count for _, mean in parts)
    return sum(mean.total for _, mean in parts) / count if count else float("nan")
