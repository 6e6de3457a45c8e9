"""The nouns that flow through training: each arrow of the design leads from one to the next.

Shapes: B sequences, T tokens. Everything is right-padded; `loss_mask[b, t]` is true where token t
is trained, and the number that belongs to token t (its log-probability, value, advantage) stands at
column t, not at t - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One tokenised sequence; `loss_mask` is 1 on the tokens that are trained."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt, the preferred one first."""

    chosen: Example
    rejected: Example


@dataclass(frozen=True)
class Prompt:
    """What a policy is asked: the messages, the rendered text and its token ids.

    `id` is unique in its dataset.
    """

    id: str
    messages: tuple[Mapping[str, str], ...]
    text: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True)
class Rollout:
    """One sampled response.

    Attributes:
        prompt: what was asked.
        response_ids: sampled token ids, with the end token where there is one.
        logprobs: nats, of the sampled tokens under the distribution that was sampled from.
        text: the response without special tokens.
        is_finished: whether the response ended by itself rather than by the token limit.
        policy_version: number of weight syncs that the engine had seen.
    """

    prompt: Prompt
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    is_finished: bool
    policy_version: int

    def example(self) -> Example:
        """Prompt and response as one sequence whose response is trained."""
        mask = (0,) * len(self.prompt.input_ids) + (1,) * len(self.response_ids)
        return Example(self.prompt.input_ids + self.response_ids, mask)


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout and its reward."""

    rollout: Rollout
    reward: float


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences.

    Attributes:
        input_ids: [B, T] int64.
        attention_mask: [B, T] bool.
        loss_mask: [B, T] bool; column 0 is never set, since nothing predicts it.
    """

    input_ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor


@dataclass(frozen=True)
class Experience:
    """A batch of rollouts with everything that the losses need; all [B, T] floats.

    Attributes:
        batch: the sequences.
        old_logprobs: trainer's log-probabilities before the update.
        ref_logprobs: under the reference.
        values: the critic's, before the update.
        advantages: ready for the policy loss.
        returns: targets of the critic.
    """

    batch: Batch
    old_logprobs: Tensor
    ref_logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def rows(self, indices: Tensor) -> Experience:
        """Return the rows `indices`, cut to their own longest sequence."""
        width = int(self.batch.attention_mask[indices].sum(dim=1).max())

        def cut(x: Tensor) -> Tensor:
            return x[indices, :width]

        batch = Batch(
            cut(self.batch.input_ids), cut(self.batch.attention_mask), cut(self.batch.loss_mask)
        )
        floats = (self.old_logprobs, self.ref_logprobs, self.values, self.advantages, self.returns)
        return Experience(batch, *(cut(x) for x in floats))


@dataclass(frozen=True)
class Mean:
    """A mean that is not divided yet, so that it can be added up over micro-batches and ranks."""

    total: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        """Pool two means."""
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN if nothing was counted."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True)
class Loss:
    """What an objective returns for one micro-batch.

    Attributes:
        total: scalar tensor with gradient, the *sum* over what is counted.
        count: how many tokens, pairs or sequences that sum is over.
        metrics: detached quantities to report.
    """

    total: Tensor
    count: float
    metrics: Mapping[str, Mean] = field(default_factory=dict)


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    metrics: Mapping[str, float]


def mean_of(values: Tensor, mask: Tensor | None = None) -> Mean:
    """Wrap `values` (where `mask`, bool of the same shape, is set) as a detached `Mean`."""
    chosen = values.detach() if mask is None else values.detach()[mask]
    return Mean(float(chosen.to(torch.float64).sum()), float(chosen.numel()))
