"""A reward model, trained on preferences; built on a policy's backbone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from stages.admission.evidence import held_out_evidence
from stages.batches.encoding import encode_pairs
from stages.batches.heldout_split import split_by_prompt
from stages.batches.micro_batches import Pairs, micro_batches, sharing_pays
from stages.canaries.probe import dataset_probe, end_states
from stages.canaries.running import run_canaries
from stages.configs.data_config import DataConfig
from stages.configs.reward_model_config import STAGE, RewardModelConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import preferences
from stages.training.fit import fit
from stages.training.heldout_metrics import pair_metrics, pair_scores
from stages.training.trained_model import TrainedModel
from training_core.algorithms.reward_losses import REWARD_LOSSES
from training_core.data import chat
from training_core.data.templates import ending_at_the_response
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.causal_lm import packs_rows
from training_core.models.scalar_head import sequence_scores
from training_core.objectives.balanced import balanced, each_counts
from training_core.objectives.preference import pairwise_reward
from training_core.types import Pair

SMALLEST_STD = 1e-6
"""Standard deviation of scores below which single precision may have made all of it."""


def run(config: RewardModelConfig, inputs: Inputs, context: Context) -> Result:
    """Maximise the likelihood of the preferences.

    The artifact is an `AutoModelForSequenceClassification` of one label.

    Metrics: `train_pairs`, `train_accuracy`, `heldout_pairs`, `heldout_accuracy`,
    `heldout_margin`, `reward_mean` and `reward_std` (also stored in its config), and the evidence
    of `stages.admission`.
    """
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    pairs, heldout = pairs_of(config, inputs, tokenizer)

    loaded = hub.load_scalar_model(
        inputs["policy"], options=config.model.load_options(seed=config.seed)
    )
    model = TrainedModel(loaded, len(pairs), config.training, context)
    shares = sharing_pays(model, pairs, pad_id, sequence_scores, is_sum=False)
    packs = packs_rows(model.model)
    train, test = (Pairs(some, pad_id, model.device, shares, packs) for some in (pairs, heldout))
    loss = partial(REWARD_LOSSES[config.loss], centering_coef=config.centering_coef)
    budget = config.training.micro_batch_tokens

    def measure() -> Mapping[str, float]:
        scores = pair_scores(model, test, budget_tokens=budget, dist_info=context.dist_info)
        return {f"heldout_{name}": value for name, value in pair_metrics(scores).items()}

    objective = balanced(
        pairwise_reward(loss), config.model.moe_aux_loss_coef, weights=each_counts(0.5)
    )
    probe = partial(dataset_probe, outputs=end_states, budget_tokens=budget)
    look = partial(probe, model, tokenizer, train, pairs, objective)
    run_canaries(STAGE, config, context, model, look)
    fit(
        model,
        objective,
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        evaluate=measure if heldout else None,
    )
    scores = pair_scores(model, train, budget_tokens=budget, dist_info=context.dist_info)
    metrics = {
        "train_pairs": float(len(pairs)),
        "heldout_pairs": float(len(heldout)),
        "train_accuracy": pair_metrics(scores)["accuracy"],
        "reward_mean": float(scores.mean()),
        "reward_std": float(scores.std()),
        **_held_out(config, model, tokenizer, train, test),
    }
    _require_scale(metrics["reward_mean"], metrics["reward_std"], model.model.dtype)
    model.model.config.reward_mean = metrics["reward_mean"]
    model.model.config.reward_std = metrics["reward_std"]
    model.model.config.pad_token_id = pad_id
    tokenizer.chat_template = ending_at_the_response(tokenizer.get_chat_template())
    model.save(tokenizer)
    return Result(metrics)


def _held_out(
    config: RewardModelConfig,
    model: TrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Pairs,
    heldout: Pairs,
) -> dict[str, float]:
    """Measure the trained model on the held-out pairs; empty if there are none."""
    if not heldout.pairs:
        return {}
    budget, ranks = config.training.micro_batch_tokens, model.context.dist_info
    scores = pair_scores(model, heldout, budget_tokens=budget, dist_info=ranks)
    evidence = held_out_evidence(
        model,
        tokenizer,
        train.pairs,
        heldout.pairs,
        scores,
        max_tokens=config.training.max_tokens,
        budget_tokens=budget,
        dist_info=ranks,
    )
    return {**{f"heldout_{name}": v for name, v in pair_metrics(scores).items()}, **evidence}


def _require_scale(mean: float, std: float, dtype: torch.dtype) -> None:
    """Refuse a model whose scores differ by no more than rounding: dividing by std would blow up.

    The head starts at zero, so a model that learned nothing has a standard deviation near 0.
    """
    noise = SMALLEST_STD + torch.finfo(dtype).eps * abs(mean)
    if not (math.isfinite(mean) and noise < std < math.inf):
        raise DataError(
            "the trained reward model gives all training responses nearly one score: mean "
            f"{mean:.3g}, standard deviation {std:.3g}, expected more than {noise:.3g}. Look at "
            "the pairs and at the loss in metrics.jsonl; train longer, or raise the learning rate"
        )


def pairs_of(
    config: RewardModelConfig, inputs: Inputs, tokenizer: PreTrainedTokenizerBase
) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """Return the pairs for training and the held-out pairs."""

    def encode(source: DataConfig | Path) -> list[Pair]:
        rows = preferences(source)
        pairs = encode_pairs(tokenizer, rows, **config.training.row_limits)
        return pairs if config.use_margin else [replace(pair, margin=0.0) for pair in pairs]

    pairs = encode(resolve_source("reward_model.data", config.data, "dataset", inputs))
    if config.eval_data:
        return pairs, encode(config.eval_data)
    return split_by_prompt(pairs, config.heldout_fraction, lambda pair: pair.chosen.prompt_ids)
