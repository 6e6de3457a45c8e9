"""The data types of training, from tokenised examples to losses and reports.

Shapes: B sequences, T tokens. Everything is right-padded; `loss_mask[b, t]` is true where token t
is trained, and the log-probability, value and advantage of token t are in column t, not in t - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from training_core.messages import Messages


@dataclass(frozen=True)
class Example:
    """One tokenised sequence; `loss_mask` is 1 on the tokens that are trained."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The tokens before the first trained one."""
        return self.input_ids[: self.loss_mask.index(1)]


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt, the preferred one first.

    `margin` is the difference of their rewards; 0 if it is unknown.
    """

    chosen: Example
    rejected: Example
    margin: float = 0.0


@dataclass(frozen=True)
class UnpairedExample:
    """A response that was rated without comparison: desirable or not."""

    example: Example
    is_desirable: bool


@dataclass(frozen=True)
class LabelledSolution:
    """A solution with labels for its steps.

    Attributes:
        example: the tokens; `loss_mask` is 1 at the ends of the labelled steps.
        step_ends: column of each step's last token, its separator included.
        labels: of each step, in [0, 1]: 1 right, 0 wrong; None without a label.
    """

    example: Example
    step_ends: tuple[int, ...]
    labels: tuple[float | None, ...]


@dataclass(frozen=True)
class Prompt:
    """The input of a policy: the messages, the rendered text and its token ids.

    Attributes:
        id: unique in its dataset.
        messages: the conversation from the dataset.
        text: the messages, rendered with the chat template.
        input_ids: token ids of the text.
        columns: other columns of the dataset's row, e.g. the correct answer: name -> JSON-like
            value. A reward may read them; the policy does not see them.
    """

    id: str
    messages: Messages
    text: str
    input_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Rollout:
    """One sampled response.

    Attributes:
        prompt: the prompt.
        response_ids: sampled token ids, with those that ended the response.
        logprobs: log-probabilities of the sampled tokens under the sampling distribution, in nats:
            after temperature and truncation. Greedy sampling records those at temperature 1.
        text: the response without special tokens; it ends before a stop token or stop string.
        is_finished: whether an end token, stop token or stop string ended it, not the token limit.
        policy_version: version of the engine's weights: the number given to its last weight sync.
            It holds for every token, because engines get new weights only between rollouts.
    """

    prompt: Prompt
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    is_finished: bool
    policy_version: int

    def example(self) -> Example:
        """Return prompt and response as one sequence whose response is trained."""
        mask = (0,) * len(self.prompt.input_ids) + (1,) * len(self.response_ids)
        return Example(self.prompt.input_ids + self.response_ids, mask)


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout, its reward, and the numbers behind the reward by name, e.g. the parts of a sum."""

    rollout: Rollout
    reward: float
    components: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Layout:
    """Positions of several sequences in one row: side by side, or as branches of a shared prompt.

    A token attends to the earlier tokens of its own document in the trunk (branch 0, the shared
    prompt) or in its own branch.

    Attributes:
        documents: [B, T] int64; -1 for padding.
        branches: [B, T] int64.
        positions: [B, T] int64, of the token in its own sequence.
        predictors: [B, T] int64, the column whose output predicts the token.
        sequences: [B, T] int64, the number of the sequence that the token belongs to; -1 in a
            trunk and in padding.
        ends: [S, 2] int64, row and column of each sequence's last token.
    """

    documents: Tensor
    branches: Tensor
    positions: Tensor
    predictors: Tensor
    sequences: Tensor
    ends: Tensor


@dataclass(frozen=True)
class Batch:
    """Right-padded rows, each with one sequence, or with several if there is a layout.

    Attributes:
        input_ids: [B, T] int64.
        attention_mask: [B, T] bool.
        loss_mask: [B, T] bool; never true for a token that no column predicts.
        layout: None if each row is one sequence.
    """

    input_ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    layout: Layout | None = None

    @property
    def batch(self) -> Batch:
        """The batch itself, so that a `Batch` is a `MicroBatch`."""
        return self

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.attention_mask.sum())

    @property
    def padded_tokens(self) -> int:
        """Number of tokens including padding."""
        return self.input_ids.numel()

    @property
    def num_sequences(self) -> int:
        """Number of sequences, S; B without a layout."""
        return len(self.input_ids) if self.layout is None else len(self.layout.ends)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return row [S] and column [S] of each sequence's last token."""
        if self.layout is not None:
            rows, columns = self.layout.ends.unbind(dim=1)
            return rows, columns
        # The last attended column, for padding on any side (OpenRLHF#217, RewardBench#137).
        places = torch.arange(self.attention_mask.shape[1], device=self.attention_mask.device)
        columns = (self.attention_mask * places).argmax(dim=1)
        return torch.arange(len(columns), device=columns.device), columns

    def sequence_sums(self, values: Tensor) -> Tensor:
        """Sum `values` [B, T], which are zero outside the loss mask, over each sequence: [S]."""
        if self.layout is None:
            return values.sum(dim=1)
        sums = values.new_zeros(self.num_sequences)
        return sums.index_add(0, self.layout.sequences[self.loss_mask], values[self.loss_mask])


class MicroBatch(Protocol):
    """The input of an objective: some sequences and the data that belong to them."""

    @property
    def batch(self) -> Batch:
        """The sequences."""
        ...


@dataclass(frozen=True)
class Experience:
    """A batch of rollouts with everything that the losses need; its own tensors are [B, T] floats.

    Attributes:
        batch: the sequences.
        old_logprobs: log-probabilities before the update, of the trainer or of the sampler; None
            takes those of the update, which must be the only one.
        advantages: ready for the policy loss.
        returns: targets of the critic.
        values: values of the critic before the update; zero without a critic.
        ref_logprobs: log-probabilities under the reference; None without a reference.
        weights: correct the policy loss for the sampler's distribution; None corrects nothing.
    """

    batch: Batch
    old_logprobs: Tensor | None
    advantages: Tensor
    returns: Tensor
    values: Tensor
    ref_logprobs: Tensor | None = None
    weights: Tensor | None = None

    def rows(self, indices: Tensor) -> Experience:
        """Return the rows `indices`, cut to their own longest sequence."""
        width = int(self.batch.attention_mask[indices].sum(dim=1).max())

        def cut(x: Tensor) -> Tensor:
            return x[indices, :width]

        whole = self.batch
        batch = Batch(cut(whole.input_ids), cut(whole.attention_mask), cut(whole.loss_mask))
        own = {name: cut(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, batch=batch, **own)


@dataclass(frozen=True)
class Mean:
    """A sum and a count, so that a mean can be pooled over micro-batches and ranks."""

    total: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        """Add two means: sum and count."""
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean; NaN if the count is 0."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True)
class Loss:
    """What an objective returns for one micro-batch.

    Attributes:
        total: scalar tensor with gradient: the *sum* over tokens, pairs or sequences.
        count: number of tokens, pairs or sequences in the sum.
        metrics: detached quantities to report.
    """

    total: Tensor
    count: float
    metrics: Mapping[str, Mean] = field(default_factory=dict)


@dataclass(frozen=True)
class StepReport:
    """The report of one optimizer step."""

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
