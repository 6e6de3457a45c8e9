"""What a policy loss sees of a micro-batch. Shapes: B sequences, T tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

LARGEST_LOG_RATIO = 20.0
"""exp(20) is far outside every clip range, and it prevents 0 * inf in the gradient."""


@dataclass(frozen=True)
class PolicyTokens:
    """The response tokens of a micro-batch.

    Attributes:
        logprobs: [B, T] under the trained policy; with gradient; zero outside the mask.
        old_logprobs: [B, T] under the policy with which the experience was computed.
        advantages: [B, T].
        loss_mask: [B, T] bool.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor

    def log_ratios(self) -> Tensor:
        """Return log(policy / old policy) of each token, [B, T], limited to +-20."""
        ratios = self.logprobs - self.old_logprobs
        return ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)

    def ratios(self) -> Tensor:
        """Return policy / old policy of each token, [B, T]."""
        return self.log_ratios().exp()

    def mean_of_response(self, values: Tensor) -> Tensor:
        """Average `values` [B, T] over the masked tokens of each response: [B, 1]."""
        sums = values.masked_fill(~self.loss_mask, 0.0).sum(dim=1, keepdim=True)
        return sums / self.loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
