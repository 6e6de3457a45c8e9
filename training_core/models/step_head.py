"""Process reward models: a body with two outputs per token, wrong and right.

Shapes: B sequences, T tokens, K steps.
"""

from __future__ import annotations

from torch import Tensor, nn

from training_core.models.causal_lm import hidden_states
from training_core.models.parts import head_outputs, scalar_head
from training_core.types import Batch


def step_scores(model: nn.Module, batch: Batch, ends: Tensor) -> Tensor:
    """Score each step at its last token: the log-odds that the step is right.

    Args:
        model: an `AutoModelForTokenClassification` with two labels, wrong (0) and right (1).
        batch: [B, T], one sequence per row.
        ends: [K, 2] row and column of the last token of each step.

    Returns:
        [K]; the difference of the model's two logits, in at least single precision.
    """
    hidden = hidden_states(model, batch)[ends[:, 0], ends[:, 1]]
    wrong, right = head_outputs(scalar_head(model, outputs=2), hidden).unbind(dim=-1)
    return right - wrong
