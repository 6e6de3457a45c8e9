"""What the canaries look at: a few rows of a stage, and how the stage computes on them.

Shapes: B rows, T tokens, K numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Collator, rounding
from stages.batches.sequences import Encoded, examples_in
from training_core.loop import Objective
from training_core.models.causal_lm import hidden_states, logprobs, sequence_logprobs
from training_core.models.computing import ComputingModel
from training_core.types import Batch, Example, Loss, MicroBatch

M = TypeVar("M", bound=MicroBatch)

COMPUTED_ITEMS = 4
"""Items, e.g. pairs, on which the model computes."""
READ_ITEMS = 64
"""Items whose tokens are read."""


@dataclass(frozen=True)
class AuditedAnswer:
    """An encoded row and what its trained tokens must say.

    Attributes:
        place: position of the row, e.g. `pairs.jsonl, row 7`.
        example: the tokens and the loss mask.
        response: text of the last answer.
        earlier: texts of the earlier answers of the conversation.
        is_finished: whether the end token follows the response.
    """

    place: str
    example: Example
    response: str
    earlier: tuple[str, ...] = ()
    is_finished: bool = True


@dataclass(frozen=True)
class EqualReference:
    """A policy beside the log-probabilities of a reference that is the same model.

    Attributes:
        log_ratios: [items, sides] of policy to reference, summed over the trained tokens.
        tokens: number of all these tokens.
        rounding: largest log-ratio that counts as rounding; see `micro_batches.rounding`.
        is_half: whether the model computes in half precision.
    """

    log_ratios: Tensor
    tokens: int
    rounding: float
    is_half: bool


@dataclass(frozen=True)
class FirstUpdate:
    """The first round of reinforcement learning, before its update.

    Attributes:
        old_logprobs: [K] of the trained tokens, as the stage has computed them for the whole round.
        log_ratios: mean log-ratio of policy to old policy of some rollouts, as the objective of the
            update computes it.
        ref_logprobs: [K] under the reference; None without one, or if it is another model.
        sampler_gap: mean distance between the log-probabilities of sampler and trainer, in nats;
            None without rollouts of the newest weights.
        sampler_limit: the largest one that the config allows.
        ratio_limit: largest mean distance of a log-ratio that counts as rounding.
    """

    old_logprobs: Tensor
    log_ratios: Tensor
    ref_logprobs: Tensor | None
    sampler_gap: float | None
    sampler_limit: float
    ratio_limit: float


@dataclass(frozen=True)
class Probe:
    """A few rows of a stage, and how it computes on them. A canary without its material is skipped.

    Attributes:
        tokenizer: of the trained model.
        device: where the model computes.
        rounding: largest mean distance of two log-probabilities that counts as rounding; see
            `rounding_of`.
        sequences: tokens that are only read.
        computed: sequences on which the model computes.
        compute: batch -> [K] numbers of its sequences, in their order; no gradients.
        loss_of: positions of items -> their loss, as one micro-batch.
        items: number of items that `loss_of` knows.
        answers: encoded rows with their texts.
        equal_reference: log-ratios to a reference that is the same model.
        first_update: of reinforcement learning.
    """

    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    rounding: float
    sequences: Sequence[Example] = ()
    computed: Sequence[Example] = ()
    compute: Callable[[Batch], Tensor] | None = None
    loss_of: Callable[[Sequence[int]], Loss] | None = None
    items: int = 0
    answers: Sequence[AuditedAnswer] = ()
    equal_reference: EqualReference | None = None
    first_update: FirstUpdate | None = None


def dataset_probe(
    model: ComputingModel,
    tokenizer: PreTrainedTokenizerBase,
    collator: Collator[M],
    items: Sequence[Encoded],
    objective: Objective[M],
    *,
    outputs: Callable[[nn.Module, Batch], Tensor],
    budget_tokens: int,
    answers: Sequence[AuditedAnswer] = (),
    equal_reference: EqualReference | None = None,
) -> Probe:
    """Build the probe of a stage that trains on a dataset.

    Args:
        model: before the first step, at work.
        tokenizer: its tokenizer.
        collator: the items as tensors.
        items: of the collator.
        objective: the loss of a micro-batch.
        outputs: (model, batch) -> [K], e.g. `trained_logprobs`.
        budget_tokens: padded tokens of a micro-batch; bounds what the canaries cost.
        answers: see `Probe`.
        equal_reference: see `Probe`.
    """
    chosen = chosen_items(collator.lengths, budget_tokens)
    return Probe(
        tokenizer,
        model.device,
        rounding_of(model.model),
        sequences=[e for item in items[:READ_ITEMS] for e in examples_in(item)],
        computed=[e for i in chosen for e in examples_in(items[i])][:COMPUTED_ITEMS],
        compute=lambda batch: model.compute(outputs, batch),
        loss_of=lambda some: model.compute(objective, collator([chosen[i] for i in some])),
        items=len(chosen),
        answers=answers,
        equal_reference=equal_reference,
    )


def equal_reference_of(
    policy: ComputingModel,
    collator: Collator[MicroBatch],
    items: Sequence[Encoded],
    references: Tensor,
    budget_tokens: int,
) -> EqualReference:
    """Compare a policy with the log-probabilities of an equal reference.

    Args:
        policy: before the first step, at work.
        collator: some items as tensors.
        items: of the collator.
        references: [items, sides] summed log-probabilities.
        budget_tokens: padded tokens of a micro-batch.
    """

    def sums(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return sequence_logprobs(model, micro_batch.batch)

    now = over_all(
        policy,
        collator,
        sums,
        budget_tokens=budget_tokens,
        columns=references.shape[1],
    )
    sequences = [example for item in items for example in examples_in(item)]
    return EqualReference(
        now - references,
        sum(sum(example.loss_mask) for example in sequences),
        rounding(policy.model.dtype, sequences),
        policy.model.dtype in (torch.bfloat16, torch.float16),
    )


def chosen_items(lengths: Sequence[int], budget_tokens: int) -> list[int]:
    """Choose items of different lengths that fit into one micro-batch together.

    Args:
        lengths: number of tokens of each item.
        budget_tokens: of a micro-batch.

    Returns:
        At most `COMPUTED_ITEMS` positions; if no items fit together, the two shortest.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    fitting = [i for i in order if COMPUTED_ITEMS * lengths[i] <= budget_tokens]
    if len(fitting) < COMPUTED_ITEMS:
        return order[: max(2, len(fitting))]
    last = len(fitting) - 1
    places = [last * step // (COMPUTED_ITEMS - 1) for step in range(COMPUTED_ITEMS)]
    return [fitting[place] for place in places]


def rounding_of(model: nn.Module) -> float:
    """Return the square root of the machine epsilon of a model's coarsest weights.

    I.e. half of the digits are lost to rounding over all layers: 3e-4 in single precision, 0.09 in
    bfloat16. Weights of 4 bits are computed in bfloat16.
    """
    kinds = {parameter.dtype for parameter in model.parameters()}
    epsilons = [
        torch.finfo(kind if kind.is_floating_point else torch.bfloat16).eps for kind in kinds
    ]
    return max(epsilons) ** 0.5


def trained_logprobs(model: nn.Module, batch: Batch) -> Tensor:
    """Log-probabilities [K] of the trained tokens of a policy, row by row."""
    return logprobs(model, batch)[batch.loss_mask]


def end_states(model: nn.Module, batch: Batch) -> Tensor:
    """Hidden states at the last token of each sequence, over their root mean square, flat.

    A reward model scores them; its head is zero before the first step, so scores show nothing.
    """
    states = hidden_states(model, batch)[batch.ends()].float()
    return (states / states.square().mean(dim=-1, keepdim=True).sqrt()).flatten()
