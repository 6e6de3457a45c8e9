"""Losses on the steps of a solution, one number per step. Shapes: N steps, K label tokens.

A label is the probability that the step is right. Hard labels are 0 or 1, e.g. from a person. Soft
labels are between, e.g. the share of continuations that reach the correct answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid


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


def label_token_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over the label tokens, at each step's placeholder.

        loss = -sum_k p_k * log softmax(z)_k

    Args:
        logits: [N, K], only of the label tokens: hidden state times K rows of the output embedding.
            The logits of the full vocabulary are then not needed, but allowed.
        labels: [N] int64, index of the correct token, or [N, K] float, rows that sum to 1;
            `soft_label_rows` makes such rows for two tokens.

    Returns:
        [N] nats; ln K if all tokens are equally likely.

    Source:
        OpenRLHF's process reward model; Wang et al. 2023, https://arxiv.org/abs/2312.08935
    """
    return cross_entropy(logits, labels, reduction="none")


def soft_label_rows(labels: Tensor) -> Tensor:
    """Convert probabilities that a step is right to targets for two label tokens.

        p  ->  [p, 1 - p]

    Args:
        labels: [N] float in [0, 1].

    Returns:
        [N, 2]; the token for "right" comes first.

    Source:
        OpenRLHF's process reward model.
    """
    return torch.stack((labels, 1 - labels), dim=-1)


def step_probabilities(logits: Tensor) -> Tensor:
    """Compute the probability that a step is right from a scalar head.

    Args:
        logits: [N].

    Returns:
        [N] in [0, 1], the process reward.

    Source:
        Lightman et al. 2023, https://arxiv.org/abs/2305.20050
    """
    return logits.sigmoid()


def label_token_probabilities(logits: Tensor) -> Tensor:
    """Compute the probability that a step is right from the label tokens.

    Args:
        logits: [N, K], the token for "right" first.

    Returns:
        [N] in [0, 1], the process reward.

    Source:
        Wang et al. 2023, https://arxiv.org/abs/2312.08935
    """
    return logits.softmax(dim=-1)[:, 0]


@dataclass(frozen=True)
class ProcessLoss:
    """An entry of `PROCESS_LOSSES`.

    Attributes:
        function: (logits, targets) -> [N].
        targets: labels [N] in [0, 1] -> targets of `function`.
        probabilities: logits -> [N], the process reward.
        needs_scalar_head: True for logits [N] of a scalar head, False for logits [N, 2] of the
            language model's head at two label tokens, "right" first.
        description: one line.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[Tensor], Tensor]
    probabilities: Callable[[Tensor], Tensor]
    needs_scalar_head: bool
    description: str


def _as_they_are(labels: Tensor) -> Tensor:
    return labels


PROCESS_LOSSES: dict[str, ProcessLoss] = {
    "step": ProcessLoss(
        step_cross_entropy, _as_they_are, step_probabilities, True, "a scalar head's logit"
    ),
    "label_token": ProcessLoss(
        label_token_cross_entropy,
        soft_label_rows,
        label_token_probabilities,
        False,
        "the next token is '+' or '-' (OpenRLHF, Math-Shepherd)",
    ),
}
