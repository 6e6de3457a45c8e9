"""A process reward model: how likely each step of a solution is right, from a policy's backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stages.contract import Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.models import ModelOptions
from stages.settings.training import Training
from stages.sources import either

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from training_core.types import Steps


class Config(StageConfig):
    """What a person writes about the process reward model."""

    data: Data | None = semantic(
        None, "Solutions with labelled steps; None takes the input `dataset`."
    )
    eval_data: Data | None = semantic(
        None, "Held-out solutions; None holds `heldout_fraction` of the data out."
    )
    heldout_fraction: float = semantic(
        0.1, "Share of the solutions held out where eval_data is None.", ge=0, lt=1
    )
    separator: str = semantic("\n", "What is written after each step.")
    placeholder: str = semantic(
        "ки", "What ends each step of rows that have question and steps as one text (OpenRLHF's)."
    )
    first_step: str | None = semantic(
        "Step 1:", "What the first step of such rows begins with; None takes it all as steps."
    )
    model: ModelOptions = semantic(ModelOptions(), "What the model is loaded as.")
    training: Training = semantic(Training(), "How the model is fitted; a batch is of solutions.")


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Fit the step labels by cross-entropy at the last token of each step.

    The artifact is an `AutoModelForTokenClassification` of two labels, wrong (0) and right (1).

    Metrics: `train_steps`, `heldout_steps`, `heldout_accuracy`, and beside it
    `heldout_majority`, the accuracy of always answering what is most frequent.
    """
    from stages.batches import micro_batches
    from stages.engines import best_device
    from stages.offline import fit, save_model
    from stages.steps import StepRows
    from training_core.algorithms.process_losses import step_cross_entropy
    from training_core.data import chat
    from training_core.models import hub
    from training_core.objectives.balanced import balanced
    from training_core.objectives.process import process_reward

    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    solutions, heldout = _solutions(config, inputs, tokenizer)
    options = config.model.load_options(seed=config.seed)
    model = hub.load_step_model(inputs["policy"], options=options).to(best_device())
    train, test = (StepRows(some, pad_id, model.device) for some in (solutions, heldout))

    def measure() -> Mapping[str, float]:
        return _heldout_metrics(model, test, config)

    fit(
        model,
        balanced(
            process_reward(step_cross_entropy),
            config.model.moe_aux_loss_coef,
            batch_of=lambda batch: batch.batch,
        ),
        micro_batches(train, config.training, seed=config.seed, ranks=context.ranks),
        num_examples=len(solutions),
        training=config.training,
        context=context,
        evaluate=measure if heldout else None,
    )
    model.config.pad_token_id = pad_id
    save_model(model, tokenizer, context)
    metrics = {"train_solutions": float(len(solutions)), **measure()}
    return Result("process_reward_model", metrics)


def _solutions(
    config: Config, inputs: Inputs, tokenizer: Any
) -> tuple[Sequence[Steps], Sequence[Steps]]:
    """Solutions for training, and solutions that are held out."""
    from stages.datasets import solutions
    from stages.encoding import encode_solutions

    def encode(source: Any) -> list[Steps]:
        marks = {"placeholder": config.placeholder, "first_step": config.first_step}
        return encode_solutions(
            tokenizer,
            solutions(source, **marks),
            max_tokens=config.training.max_tokens,
            separator=config.separator,
        )

    found = encode(either("process_reward.data", config.data, "dataset", inputs))
    if config.eval_data:
        return found, encode(config.eval_data)
    size = round(config.heldout_fraction * len(found))
    return found[size:], found[:size]


def _heldout_metrics(model: Any, rows: Any, config: Config) -> Mapping[str, float]:
    from stages.steps import judged_steps

    scores, labels = judged_steps(model, rows, budget_tokens=config.training.micro_batch_tokens)
    if not len(labels):
        return {}
    is_right = labels > 0.5  # noqa: PLR2004 - more likely right than not
    majority = float(is_right.double().mean())
    return {
        "heldout_steps": float(len(labels)),
        "heldout_accuracy": float(((scores > 0) == is_right).double().mean()),
        "heldout_majority": max(majority, 1 - majority),
    }
