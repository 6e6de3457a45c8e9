"""Divergences between a student's and a teacher's next-token distributions, chunk by chunk.

Shapes: N trained positions, V vocabulary, H and H' hidden sizes of student and teacher, n positions
of one chunk. S is the student's distribution, T the teacher's. All values are in nats.

`token_divergence` iterates over the chunks. An entry of `DIVERGENCES` has a formula and its
gradient for one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from training_core.algorithms.logprobs import Head


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student): the student must cover all modes of the teacher.

        D = sum_v T_v * (log T_v - log S_v)

    Args:
        student: [n, V] log-probabilities.
        teacher: [n, V] log-probabilities.

    Returns:
        [n] nats.

    Source:
        Hinton et al. 2015, https://arxiv.org/abs/1503.02531 (without the factor temperature^2)
    """
    return (teacher.exp() * (teacher - student)).sum(dim=-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student || teacher): the student must avoid tokens that are unlikely for the teacher.

        D = sum_v S_v * (log S_v - log T_v)

    Args:
        student: [n, V] log-probabilities.
        teacher: [n, V] log-probabilities.

    Returns:
        [n] nats.

    Source:
        Gu et al. 2023 (MiniLLM), eq. 1, https://arxiv.org/abs/2306.08543
    """
    return forward_kl(teacher, student)


def jsd(student: Tensor, teacher: Tensor, *, beta: float) -> Tensor:
    """Generalised Jensen-Shannon divergence, between forward and reverse KL.

        M = beta * T + (1 - beta) * S
        D = beta * KL(T || M) + (1 - beta) * KL(S || M)

    Near beta = 0 it is like the forward KL, near 1 like the reverse KL: D / beta -> KL(T || S) for
    beta -> 0, and D / (1 - beta) -> KL(S || T) for beta -> 1. D itself is 0 at both ends, so the
    two KLs have their own entries. At 1/2 it is symmetric and at most ln 2.

    Args:
        student: [n, V] log-probabilities.
        teacher: [n, V] log-probabilities.
        beta: in (0, 1), the teacher's share of the mixture.

    Returns:
        [n] nats.

    Source:
        Agarwal et al. 2023 (GKD), eq. 1, https://arxiv.org/abs/2306.13649
    """
    mixture = _log_mixture(student, teacher, beta)
    return beta * forward_kl(mixture, teacher) + (1 - beta) * forward_kl(mixture, student)


@dataclass(frozen=True)
class Divergence:
    """An entry of `DIVERGENCES`.

    Attributes:
        function: (student [n, V], teacher [n, V], **hyperparameters) -> [n], on log-probabilities.
        gradient: the same arguments -> [n, V], the derivative with respect to the student's logits.
    """

    function: Callable[..., Tensor]
    gradient: Callable[..., Tensor]


def _forward_kl_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    return student.exp().sub_(teacher.exp())


def _reverse_kl_gradient(student: Tensor, teacher: Tensor) -> Tensor:
    return _through_softmax(student, student - teacher)


def _jsd_gradient(student: Tensor, teacher: Tensor, *, beta: float) -> Tensor:
    slope = student - _log_mixture(student, teacher, beta)
    return _through_softmax(student, slope.mul_(1 - beta))


DIVERGENCES: dict[str, Divergence] = {
    "forward_kl": Divergence(forward_kl, _forward_kl_gradient),
    "reverse_kl": Divergence(reverse_kl, _reverse_kl_gradient),
    "jsd": Divergence(jsd, _jsd_gradient),
}


def token_divergence(
    divergence: Divergence,
    student_hidden: Tensor,
    student_head: Head,
    teacher_hidden: Tensor,
    teacher_head: Head,
    *,
    chunk_positions: int = 256,
    keep_mib: float = 256.0,
    **hyperparameters: float,
) -> Tensor:
    """Compute the divergence at every position, with logits of only one chunk in memory at a time.

    The student's hidden states and head get a gradient, the teacher's do not. The gradient with
    respect to the logits is stored for the backward pass if it fits into `keep_mib`. Otherwise the
    backward pass computes the logits of both models again.

    Args:
        divergence: entry of `DIVERGENCES`.
        student_hidden: [N, H] final hidden states of the trained positions.
        student_head: weight [V, H]; its temperature softens the student's distribution.
        teacher_hidden: [N, H'] of the same positions.
        teacher_head: weight [V, H']; usually with the student's temperature.
        chunk_positions: number of positions per chunk.
        keep_mib: memory limit for storing gradients from the forward to the backward pass.
        hyperparameters: keyword arguments of the divergence's function.

    Returns:
        [N] nats, float32 (float64 for float64 inputs).

    Raises:
        ValueError: if the vocabularies or the numbers of positions differ.

    Source:
        Agarwal et al. 2023 (GKD), https://arxiv.org/abs/2306.13649
    """
    _require_alike("positions", len(student_hidden), len(teacher_hidden))
    _require_alike("vocabulary", len(student_head.weight), len(teacher_head.weight))
    function = partial(divergence.function, **hyperparameters)
    gradient = partial(divergence.gradient, **hyperparameters)
    logits_mib = student_hidden.shape[0] * student_head.weight.shape[0] * 4 / 2**20
    settings = _Settings(
        Divergence(function, gradient),
        student_head,
        teacher_head,
        chunk_positions,
        is_kept=torch.is_grad_enabled() and logits_mib <= keep_mib,
    )
    return _TokenDivergence.apply(
        student_hidden, student_head.weight, student_head.bias, teacher_hidden, settings
    )


@dataclass(frozen=True)
class _Settings:
    divergence: Divergence
    student_head: Head
    teacher_head: Head
    chunk_positions: int
    is_kept: bool

    def chunks(self, positions: int) -> list[slice]:
        starts = range(0, positions, self.chunk_positions)
        return [slice(start, start + self.chunk_positions) for start in starts]

    def logprobs(self, student_hidden: Tensor, teacher_hidden: Tensor) -> tuple[Tensor, Tensor]:
        student = self.student_head.logits(student_hidden)
        teacher = self.teacher_head.logits(teacher_hidden)
        return (
            student.sub_(student.logsumexp(dim=-1, keepdim=True)),
            teacher.sub_(teacher.logsumexp(dim=-1, keepdim=True)),
        )

    def logits_gradient(self, student: Tensor, teacher: Tensor, student_hidden: Tensor) -> Tensor:
        """Return the derivative [n, V] with respect to h @ W^T + b, in the hidden states' dtype."""
        head = self.student_head
        gradient = self.divergence.gradient(student, teacher).div_(head.temperature)
        if head.softcap is not None:  # d tanh(x) = 1 - tanh(x)^2
            tanh = head.logits(student_hidden).mul_(head.temperature / head.softcap)
            gradient.mul_(tanh.square_().neg_().add_(1.0))
        return gradient.to(student_hidden.dtype)


class _TokenDivergence(torch.autograd.Function):
    """Forward and backward pass of `token_divergence`."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        teacher_hidden: Tensor,
        settings: _Settings,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        values = hidden.new_empty(len(hidden), dtype=wide)
        is_kept = settings.is_kept and any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        for at in settings.chunks(len(hidden)):
            student, teacher = settings.logprobs(hidden[at], teacher_hidden[at])
            values[at] = settings.divergence.function(student, teacher)
            if is_kept:
                kept.append(settings.logits_gradient(student, teacher, hidden[at]))
        ctx.save_for_backward(hidden, weight, bias, teacher_hidden)
        ctx.settings, ctx.kept = settings, kept
        return values

    @staticmethod
    @once_differentiable
    # The decorator hides the names of the parameters; autograd does not use them.
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, upstream: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, teacher_hidden = ctx.saved_tensors
        settings: _Settings = ctx.settings
        grad_hidden = torch.empty_like(hidden)
        # Sums over chunks are in at least single precision.
        wide = torch.promote_types(weight.dtype, torch.float32)
        grad_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if ctx.needs_input_grad[2] else None
        for number, at in enumerate(settings.chunks(len(hidden))):
            if settings.is_kept:
                gradient = ctx.kept[number]
            else:
                student, teacher = settings.logprobs(hidden[at], teacher_hidden[at])
                gradient = settings.logits_gradient(student, teacher, hidden[at])
            gradient = gradient * upstream[at, None].to(gradient.dtype)
            grad_hidden[at] = gradient @ weight
            if grad_weight is not None:
                grad_weight += gradient.T @ hidden[at]
            if grad_bias is not None:
                grad_bias += gradient.sum(dim=0)
        narrow = (g if g is None else g.to(weight.dtype) for g in (grad_weight, grad_bias))
        return grad_hidden, *narrow, None, None


def _through_softmax(student: Tensor, slope: Tensor) -> Tensor:
    """Convert dD / dS_v (up to a constant) to dD / d(logit v) = S_v (slope_v - sum_u S_u slope_u).

    Works in place on `slope`.
    """
    probabilities = student.exp()
    mean = torch.linalg.vecdot(probabilities, slope)
    return slope.sub_(mean[:, None]).mul_(probabilities)


def _log_mixture(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    return torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))


def _require_alike(what: str, student: int, teacher: int) -> None:
    if student != teacher:
        raise ValueError(
            f"expected the same {what} for student and teacher, found {student} and {teacher}; "
            "if only the padding of the vocabulary differs, cut it: Head(weight[:tokens])"
        )
