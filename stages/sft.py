"""Supervised fine-tuning: imitate responses, starting from a base model or an earlier policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from stages import datasets
from stages.batches.encoding import encode_demonstrations, encode_texts
from stages.batches.micro_batches import Examples, micro_batches
from stages.configs.data_config import DataConfig
from stages.configs.sft_config import SftConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.training.base_model import base_model, base_tokenizer
from stages.training.engines import best_device
from stages.training.fit import fit, save_model
from stages.training.heldout_metrics import before_and_after, mean_loss
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
    model = base_model(config, base, tokenizer).to(best_device())
    pad_id = chat.pad_id(tokenizer)
    packs = packs_rows(model)
    train = Examples(_encode(config, tokenizer, source), pad_id, model.device, packs)
    heldout_rows = _encode(config, tokenizer, config.eval_data) if config.eval_data else []
    heldout = Examples(heldout_rows, pad_id, model.device, packs)

    def measure() -> Mapping[str, float]:
        budget = config.training.micro_batch_tokens
        return {"heldout_loss": mean_loss(model, heldout, budget_tokens=budget)}

    before = measure() if heldout_rows else {}
    fit(
        model,
        balanced(supervised, config.model.moe_aux_loss_coef),
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        num_examples=len(train.examples),
        training=config.training,
        context=context,
        evaluate=measure if heldout_rows else None,
    )
    save_model(model, tokenizer, context)
    metrics = {"examples": float(len(train.examples))}
    if heldout_rows:
        metrics |= before_and_after(before, measure())
    return Result(metrics)


def _encode(
    config: SftConfig, tokenizer: PreTrainedTokenizerBase, source: DataConfig | Path
) -> Sequence[Example]:

    limits = config.training.row_limits
    if config.rows == "texts":
        return encode_texts(tokenizer, datasets.texts(source), **limits)
    return encode_demonstrations(
        tokenizer,
        datasets.demonstrations(source),
        train_on=config.train_on,
        reward_suffix=config.reward_suffix,
        **limits,
    )
