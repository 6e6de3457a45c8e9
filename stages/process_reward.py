"""A process reward model: the probability that a step is right; built on a policy's backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from stages.batches.encoding import encode_solutions
from stages.batches.heldout_split import split_by_prompt
from stages.batches.micro_batches import micro_batches
from stages.batches.solution_batches import LabelledSolutions, judged_steps
from stages.canaries.probe import dataset_probe, end_states
from stages.canaries.running import run_canaries
from stages.configs.data_config import DataConfig
from stages.configs.process_reward_config import STAGE, ProcessRewardConfig
from stages.contract import Context, Inputs, Result, resolve_source
from stages.datasets import solutions
from stages.training.fit import fit
from stages.training.trained_model import TrainedModel
from training_core.algorithms.process_losses import step_cross_entropy
from training_core.data import chat
from training_core.models import hub
from training_core.objectives.balanced import balanced
from training_core.objectives.step_labels import process_reward
from training_core.types import LabelledSolution


def run(config: ProcessRewardConfig, inputs: Inputs, context: Context) -> Result:
    """Fit the step labels by cross-entropy at the last token of each step.

    The artifact is an `AutoModelForTokenClassification` of two labels, wrong (0) and right (1).

    Metrics: `train_steps`, `heldout_steps`, `heldout_accuracy`, and for
    comparison `heldout_majority`, the accuracy of always predicting the more frequent label.
    """
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id = chat.pad_id(tokenizer)
    solutions, heldout = solutions_of(config, inputs, tokenizer)
    loaded = hub.load_step_model(
        inputs["policy"], options=config.model.load_options(seed=config.seed)
    )
    model = TrainedModel(loaded, len(solutions), config.training, context)
    train, test = (LabelledSolutions(some, pad_id, model.device) for some in (solutions, heldout))

    def measure() -> Mapping[str, float]:
        return _heldout_metrics(model, test)

    objective = balanced(process_reward(step_cross_entropy), config.model.moe_aux_loss_coef)
    run_canaries(
        STAGE,
        config,
        context,
        model,
        lambda: dataset_probe(
            model,
            tokenizer,
            train,
            train.solutions,
            objective,
            outputs=end_states,
            budget_tokens=config.training.micro_batch_tokens,
        ),
    )
    fit(
        model,
        objective,
        micro_batches(train, config.training, seed=config.seed, dist_info=context.dist_info),
        evaluate=measure if heldout else None,
    )
    metrics = {"train_solutions": float(len(solutions)), **measure()}
    model.model.config.pad_token_id = pad_id
    model.save(tokenizer)
    return Result(metrics)


def solutions_of(
    config: ProcessRewardConfig, inputs: Inputs, tokenizer: PreTrainedTokenizerBase
) -> tuple[Sequence[LabelledSolution], Sequence[LabelledSolution]]:
    """Return the solutions for training and the held-out solutions."""

    def encode(source: DataConfig | Path) -> list[tuple[object, LabelledSolution]]:
        marks = {"placeholder": config.placeholder, "first_step": config.first_step}
        limits = config.training.row_limits
        found = encode_solutions(
            tokenizer, solutions(source, **marks), separator=config.separator, **limits
        )
        return [(row.prompt or row.steps[0], s) for row, s in found]  # it begins with a step, then

    train = encode(resolve_source("process_reward.data", config.data, "dataset", inputs))
    if config.eval_data:
        heldout = encode(config.eval_data)
    else:
        train, heldout = split_by_prompt(train, config.heldout_fraction, lambda item: item[0])
    return [solution for _, solution in train], [solution for _, solution in heldout]


def _heldout_metrics(model: TrainedModel, rows: LabelledSolutions) -> Mapping[str, float]:

    budget, ranks = model.training.micro_batch_tokens, model.context.dist_info
    scores, labels = judged_steps(model, rows, budget_tokens=budget, dist_info=ranks)
    if not len(labels):
        return {}
    is_right = labels > 0.5  # noqa: PLR2004 - more likely right than not
    majority = float(is_right.double().mean())
    return {
        "heldout_steps": float(len(labels)),
        "heldout_accuracy": float(((scores > 0) == is_right).double().mean()),
        "heldout_majority": max(majority, 1 - majority),
    }
