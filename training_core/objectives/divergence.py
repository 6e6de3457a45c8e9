"""The objective of distillation: a student follows its teacher's whole distribution.

Shapes: N trained tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from training_core.algorithms.distillation_losses import Divergence, token_divergence
from training_core.algorithms.logprobs import Head, token_logprobs
from training_core.loop import Objective
from training_core.models.causal_lm import hidden_states, predicting
from training_core.models.computing import Computing
from training_core.models.parts import output_head
from training_core.types import Batch, Loss, Mean, mean_of


def distillation(
    teacher: Computing,
    divergence: Divergence,
    *,
    temperature: float,
    nll_coef: float,
    **hyperparameters: Any,
) -> Objective[Batch]:
    """Build the objective, counted per trained token.

        loss = (1 - nll_coef) * D(teacher, student) + nll_coef * NLL

    Args:
        teacher: a frozen causal language model with the student's vocabulary; it may be divided.
        divergence: entry of `DIVERGENCES`.
        temperature: softens both distributions in D, not in the NLL.
        nll_coef: in [0, 1].
        hyperparameters: hyperparameters of the divergence.
    """

    def objective(model: nn.Module, batch: Batch) -> Loss:
        student, head = _states_and_head(model, batch)
        with teacher.at_work():
            at_teacher = _states_and_kept_head if teacher.computes_together else _states_and_head
            teacher_hidden, teacher_head = teacher.compute(at_teacher, batch)
        own, known = _same_tokens(head, teacher_head)
        apart = token_divergence(
            divergence,
            student,
            _softened(own, temperature),
            teacher_hidden,
            _softened(known, temperature),
            **hyperparameters,
        )
        total = (1 - nll_coef) * apart.sum()
        metrics = {
            "divergence": mean_of(apart),
            "tokens": Mean(float(batch.num_tokens), 1.0),
        }
        if nll_coef:
            nll = -_own_logprobs(student, head, batch)
            total = total + nll_coef * nll.sum()
            metrics["nll"] = mean_of(nll)
        return Loss(total, float(batch.loss_mask.sum()), metrics)

    return objective


def _states_and_head(model: nn.Module, batch: Batch) -> tuple[Tensor, Head]:
    return hidden_states(model, batch).flatten(0, 1)[predicting(batch)], output_head(model)


def _states_and_kept_head(model: nn.Module, batch: Batch) -> tuple[Tensor, Head]:
    """Copy the head: a divided model has it only while it computes."""
    hidden, head = _states_and_head(model, batch)
    bias = None if head.bias is None else head.bias.clone()
    return hidden, replace(head, weight=head.weight.clone(), bias=bias)


def _same_tokens(*heads: Head) -> list[Head]:
    """Cut heads to their common tokens: models of one family pad vocabularies differently."""
    size = min(len(head.weight) for head in heads)
    return [
        replace(h, weight=h.weight[:size], bias=None if h.bias is None else h.bias[:size])
        for h in heads
    ]


def _softened(head: Head, temperature: float) -> Head:
    return replace(head, temperature=head.temperature * temperature)


def _own_logprobs(hidden: Tensor, head: Head, batch: Batch) -> Tensor:
    return token_logprobs(hidden, head, batch.input_ids[batch.loss_mask])[0]
