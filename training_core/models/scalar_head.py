"""Reward models and critics: a body with one output. Shapes: B rows, T tokens, S sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training_core.errors import ConfigError
from training_core.models.causal_lm import hidden_states
from training_core.models.parts import head_outputs, scalar_head, unwrapped
from training_core.types import Batch


def token_values(model: nn.Module, batch: Batch) -> Tensor:
    """Value before each token: the head's output one position earlier.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T], one sequence per row.

    Returns:
        [B, T]; zero where `loss_mask` is not set.
    """
    outputs = head_outputs(scalar_head(model), hidden_states(model, batch))
    values = torch.cat([torch.zeros_like(outputs[:, :1]), outputs[:, :-1]], dim=1)
    return values.masked_fill(~batch.loss_mask, 0.0)


def sequence_scores(model: nn.Module, batch: Batch) -> Tensor:
    """Score of each sequence: the head's output at its last token.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.
        batch: [B, T].

    Returns:
        [S], equal to the model's own `logits[:, 0]`.
    """
    return head_outputs(scalar_head(model), hidden_states(model, batch)[batch.ends()])


def reward_scale(model: nn.Module) -> tuple[float, float]:
    """Return the mean and standard deviation of the scores of the training responses.

    The stage `reward_model` stores them in the model's config; a model of another trainer has none
    and gets (0, 1).

    Raises:
        ConfigError: if the stored standard deviation is not positive.
    """
    config = unwrapped(model).config
    mean = float(getattr(config, "reward_mean", 0.0))
    std = float(getattr(config, "reward_std", 1.0))
    if not std > 0:
        raise ConfigError(
            f"the reward model in {config.name_or_path} has reward_std {std}: it gave every "
            "training response one score, so its rewards cannot be normalised; set "
            "reward.normalise to false, or train it again"
        )
    return mean, std


@torch.no_grad()
def normalise_scores(model: nn.Module) -> None:
    """Change the head so that its outputs are the normalised rewards, (score - mean) / std.

    A critic that starts from a reward model predicts rewards. If these are normalised and the head
    is not, the first values are wrong by the scale of the reward model.

    Args:
        model: an `AutoModelForSequenceClassification` with one label.

    Raises:
        ConfigError: see `reward_scale`.
    """
    mean, std = reward_scale(model)
    head = scalar_head(model)
    bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    head.weight /= std
    head.bias = nn.Parameter((bias - mean) / std)
