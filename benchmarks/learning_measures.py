"""Held-out numbers of trained models, one per pair or step, so that they can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from stages.batches.encoding import encode_pairs, encode_solutions
from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Pairs
from stages.batches.solution_batches import LabelledSolutions, judged_steps
from stages.configs.data_config import FileDataConfig
from stages.datasets import preferences, solutions
from stages.training.heldout_metrics import pair_scores
from training_core.data import chat
from training_core.models import hub
from training_core.models.offloading import FrozenWeights
from training_core.objectives.preference import pair_logprobs

BUDGET = 8192
NO_LIMIT = 100_000
Rows = Sequence[Mapping[str, Any]]
Vector = NDArray[np.float64]


def reward_margins(directory: Path, source: Mapping[str, Any]) -> Vector:
    """Score of the chosen minus score of the rejected response, by a reward model."""
    model = hub.load_scalar_model(directory)
    scores = pair_scores(
        FrozenWeights(model, model.device), _pairs(directory, source, model), budget_tokens=BUDGET
    )
    return (scores[:, 0] - scores[:, 1]).numpy()


def policy_margins(directory: Path, source: Mapping[str, Any], *, per_token: bool) -> Vector:
    """Log-probability of the chosen minus the rejected response, in nats or nats per token."""
    model = hub.freeze(hub.load_policy(directory))

    def both(model: nn.Module, batch: Any) -> torch.Tensor:
        known = pair_logprobs(model, batch)
        lengths = (known.chosen_tokens, known.rejected_tokens) if per_token else (1.0, 1.0)
        return torch.cat([known.chosen / lengths[0], known.rejected / lengths[1]])

    pairs = _pairs(directory, source, model)
    sums = over_all(
        FrozenWeights(model, model.device), pairs, both, budget_tokens=BUDGET, columns=2
    )
    return (sums[:, 0] - sums[:, 1]).numpy()


def judged(
    directory: Path, source: Mapping[str, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether each labelled step is right: by a process reward model, and by its label."""
    model, tokenizer = hub.load_step_model(directory), hub.load_tokenizer(directory)
    found = encode_solutions(tokenizer, solutions(_source(source)), max_tokens=NO_LIMIT)
    rows = [solution for _, solution in found]
    steps = LabelledSolutions(rows, chat.pad_id(tokenizer), model.device)
    scores, labels = judged_steps(FrozenWeights(model, model.device), steps, budget_tokens=BUDGET)
    return (scores > 0).numpy(), (labels > 0.5).numpy()


def _pairs(directory: Path, source: Mapping[str, Any], model: Any) -> Any:

    tokenizer = hub.load_tokenizer(directory)
    rows = encode_pairs(tokenizer, preferences(_source(source)), max_tokens=NO_LIMIT)
    return Pairs(rows, chat.pad_id(tokenizer), model.device)


def _source(source: Mapping[str, Any]) -> Any:

    return FileDataConfig.model_validate(source)
