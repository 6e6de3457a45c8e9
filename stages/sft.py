"""Supervised fine-tuning: imitate responses, starting from a base model or an earlier policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from stages import datasets
from stages.batches.encoding import demonstration_examples, encode_demonstrations, encode_texts
from stages.batches.micro_batches import Examples, micro_batches
from stages.canaries.answers import answers_in
from stages.canaries.probe import AuditedAnswer, dataset_probe, trained_logprobs
from stages.canaries.running import run_canaries
from stages.configs.data_config import DataConfig
from stages.configs.sft_config import STAGE, SftConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import Demonstration
from stages.training.base_model import base_model, base_tokenizer
from stages.training.fit import fit
from stages.training.heldout_metrics import before_and_after, mean_loss
from stages.training.trained_model import TrainedModel
from training_core.data import chat
from training_core.models.causal_lm import packs_rows
from training_core.objectives.balanced import balanced
from training_core.objectives.supervised import supervised
from training_core.types import Example


def run(config: SftConfig, inputs: Inputs, context: Context) -> Result:
    """Train the policy, which is the artifact; only the tokens in the loss mask count.

    Metrics: `examples`, and with `eval_data` `heldout_loss_before` and `heldout_loss`, in nats per
    trained token.
    """
    source = resolve_source("sft.data", config.data, "dataset", inputs)
    base = resolve_source("sft.base", config.base, "policy", inputs)
    tokenizer = base_tokenizer(config, base, source)
    pad_id = chat.pad_id(tokenizer)
    rows = _rows(config, source)
    examples = _encode(config, tokenizer, rows)
    loaded = base_model(config, base, tokenizer)
    model = TrainedModel(loaded, len(examples), config.training, context)
    packs = packs_rows(model.model)
    train = Examples(examples, pad_id, model.device, packs)
    eval_rows = _rows(config, config.eval_data) if config.eval_data else []
    heldout_rows = _encode(config, tokenizer, eval_rows) if eval_rows else []
    heldout = Examples(heldout_rows, pad_id, model.device, packs)
    objective = balanced(supervised, config.model.moe_aux_loss_coef)

    def measure() -> Mapping[str, float]:
        budget, ranks = config.training.micro_batch_tokens, context.dist_info
        return {"heldout_loss": mean_loss(model, heldout, budget_tokens=budget, dist_info=ranks)}

    before = measure() if heldout_rows else {}
    run_canaries(
        STAGE,
        config,
        context,
        model,
        lambda: dataset_probe(
            model,
            tokenizer,
            train,
            train.examples,
            objective,
            outputs=trained_logprobs,
            budget_tokens=config.training.micro_batch_tokens,
            answers=_answers(config, tokenizer, rows, train.examples),
        ),
    )
    fit(
        model,
        objective,
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        evaluate=measure if heldout_rows else None,
    )
    metrics = {"examples": float(len(train.examples))}
    if heldout_rows:
        metrics |= before_and_after(before, measure())
    model.save(tokenizer)
    return Result(metrics)


SftRows = Sequence[Demonstration] | Sequence[str]


def _rows(config: SftConfig, source: DataConfig | Path) -> SftRows:
    return datasets.texts(source) if config.rows == "texts" else datasets.demonstrations(source)


def _encode(
    config: SftConfig, tokenizer: PreTrainedTokenizerBase, rows: SftRows
) -> Sequence[Example]:
    limits = config.training.row_limits
    if config.rows == "texts":
        return encode_texts(tokenizer, [row for row in rows if isinstance(row, str)], **limits)
    return encode_demonstrations(
        tokenizer,
        [row for row in rows if isinstance(row, Demonstration)],
        train_on=config.train_on,
        reward_suffix=config.reward_suffix,
        **limits,
    )


def _answers(
    config: SftConfig,
    tokenizer: PreTrainedTokenizerBase,
    rows: SftRows,
    examples: Sequence[Example],
) -> list[AuditedAnswer]:
    """Return the answers for the audit of the loss mask; plain texts have none."""
    encode = partial(
        demonstration_examples,
        tokenizer,
        max_tokens=config.training.max_tokens,
        train_on=config.train_on,
        reward_suffix=config.reward_suffix,
    )
    return answers_in([row for row in rows if isinstance(row, Demonstration)], encode, examples)
