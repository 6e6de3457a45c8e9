"""Losses on the steps of a solution, one number per step. Shapes: N steps.

A label is the probability that the step is right. Hard labels are 0 or 1, e.g. from a person. Soft
labels are between, e.g. the share of continuations that reach the correct answer.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def step_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of a scalar head at the end of each step.

        loss = -p * log sigmoid(z) - (1 - p) * log sigmoid(-z)

    Args:
        logits: [N] z, the head's output at the last token of each step.
        labels: [N] float p in [0, 1].

    Returns:
        [N] nats; ln 2 at z = 0 for any label.

    Source:
        Lightman et al. 2023, section 2.6, https://arxiv.org/abs/2305.20050;
        soft labels: Wang et al. 2023 (Math-Shepherd), eq. 2 to 4, https://arxiv.org/abs/2312.08935
    """
    return -labels * logsigmoid(logits) - (1 - labels) * logsigmoid(-logits)
