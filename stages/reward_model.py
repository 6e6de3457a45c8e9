"""Reward model: fit a scalar to preferences, from a policy's backbone."""

from __future__ import annotations

from functools import partial

from stages.contract import Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.training import Training
from stages.sources import either


class Config(StageConfig):
    """What a person writes about the reward model."""

    data: Data | None = semantic(None, "Preference pairs; None takes the input `dataset`.")
    eval_data: Data | None = semantic(
        None, "Held-out pairs; None holds `heldout_fraction` of the data out."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the data held out where eval_data is None.", ge=0, lt=1
    )
    centering_coef: float = semantic(
        0.01, "Pull of a pair's mean reward towards 0 (Eisenstein et al. 2023).", ge=0
    )
    training: Training = semantic(Training(), "How the model is fitted.")


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Fit the Bradley-Terry likelihood.

    The artifact is an `AutoModelForSequenceClassification` of one label.

    Metrics: `heldout_accuracy`, `heldout_pairs`, `train_pairs`, `reward_mean` and `reward_std`
    (also stored in its config).
    """
    from stages.batches import pair_batches
    from stages.datasets import preferences
    from stages.encoding import encode_pairs
    from stages.measure import pair_scores
    from stages.offline import best_device, fit
    from training_core.algorithms.reward_losses import bradley_terry
    from training_core.data import chat
    from training_core.models import hub
    from training_core.objectives.preference import pairwise_reward

    source = either("reward_model.data", config.data, "dataset", inputs)
    tokenizer = hub.load_tokenizer(inputs["policy"])
    limit, pad_id = config.training.max_tokens, chat.pad_id(tokenizer)
    pairs = encode_pairs(tokenizer, preferences(source), max_tokens=limit)
    if config.eval_data:
        heldout = encode_pairs(tokenizer, preferences(config.eval_data), max_tokens=limit)
    else:
        size = round(config.heldout_fraction * len(pairs))
        pairs, heldout = pairs[size:], pairs[:size]

    model = hub.load_scalar_model(inputs["policy"]).to(best_device())
    objective = pairwise_reward(partial(bradley_terry, centering_coef=config.centering_coef))
    batch_of = pair_batches(
        pairs, config.training, seed=config.seed, pad_id=pad_id, device=model.device
    )
    fit(
        model,
        objective,
        batch_of,
        num_examples=len(pairs),
        training=config.training,
        context=context,
    )

    budget = config.training.micro_batch_tokens
    scores = pair_scores(model, pairs, budget_tokens=budget, pad_id=pad_id)
    heldout_scores = pair_scores(model, heldout, budget_tokens=budget, pad_id=pad_id)
    metrics = {
        "train_pairs": float(len(pairs)),
        "heldout_pairs": float(len(heldout)),
        "train_accuracy": float((scores[:, 0] > scores[:, 1]).double().mean()),
        "reward_mean": float(scores.mean()),
        "reward_std": float(scores.std()),
    }
    if heldout:
        wins = heldout_scores[:, 0] > heldout_scores[:, 1]
        metrics["heldout_accuracy"] = float(wins.double().mean())
    model.config.reward_mean = metrics["reward_mean"]
    model.config.reward_std = metrics["reward_std"]
    model.config.pad_token_id = pad_id
    hub.save(model, tokenizer, context.artifact_dir)
    return Result("reward_model", metrics)
