"""Token log-probabilities and entropy from hidden states, without [N, V] logits in memory.

Shapes: N trained positions, H hidden, V vocabulary.

Both passes process the positions in chunks. The forward pass stores the softmax of its chunks if
they fit into `keep_mib`. Otherwise the backward pass computes the logits again. Operations on
tensors of width V are in place, so a chunk needs one buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

KEEP_MIB = 256.0
CHUNK_POSITIONS = 256
"""Smallest chunk: with fewer positions, the product with a large vocabulary becomes slow."""
CHUNK_MIB = {"cpu": 2.0, "cuda": 256.0}
"""Size of a chunk's logits, unless the chunk would be too small; fits into the cache of a CPU."""


@dataclass(frozen=True)
class Head:
    """How hidden states become logits: `softcap * tanh((h @ W^T + b) / softcap) / temperature`.

    Attributes:
        weight: [V, H] output embedding.
        bias: [V] or None.
        softcap: > 0 or None, e.g. Gemma 2's `final_logit_softcapping`.
        temperature: > 0, sampling temperature of the distribution.
    """

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    temperature: float = 1.0

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of `hidden` [N, H], at least in single precision."""
        logits = torch.nn.functional.linear(hidden, self.weight, self.bias)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


def token_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    chunk_positions: int | None = None,
    keep_mib: float = KEEP_MIB,
) -> tuple[Tensor, Tensor]:
    """Compute log p(target | position) and the entropy of the distribution, in nats.

        logprob = logits[target] - logsumexp(logits)
        entropy = logsumexp(logits) - sum_v softmax(logits)_v * logits_v

    Cross-entropy is the negative sum of `logprob`. Both outputs have gradients.

    Args:
        hidden: [N, H] final hidden states of the positions that predict `targets`.
        head: the output layer.
        targets: [N] int64 token ids.
        chunk_positions: number of positions per chunk; None chooses by device.
        keep_mib: memory limit for storing probabilities from the forward to the backward pass.

    Returns:
        logprobs [N] and entropy [N], float32 (float64 for float64 inputs).

    Source:
        Temperature equal to that of sampling: OpenRLHF#857, TRL#3029. Chunks: Wijmans et al. 2024,
        "Cut Your Losses", https://arxiv.org/abs/2411.09009
    """
    row_bytes = head.weight.shape[0] * _wide(hidden).itemsize
    chunk_mib = CHUNK_MIB.get(hidden.device.type, CHUNK_MIB["cuda"])
    rows = chunk_positions or max(CHUNK_POSITIONS, int(chunk_mib * 2**20 / row_bytes))
    keep = torch.is_grad_enabled() and len(targets) * row_bytes <= keep_mib * 2**20
    return _TokenLogprobs.apply(
        hidden, head.weight, head.bias, targets, (head.softcap, head.temperature, rows, keep)
    )


class _TokenLogprobs(torch.autograd.Function):
    """Forward and backward pass of `token_logprobs`.

    d logprob / d logits_v = [v = target] - p_v
    d entropy / d logits_v = -p_v * (logits_v - sum_u p_u logits_u)
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        settings: tuple[float | None, float, int, bool],
    ) -> tuple[Tensor, Tensor]:
        softcap, temperature, rows, keep = settings
        head = Head(weight, bias, softcap, temperature)
        logprobs = hidden.new_empty(len(targets), dtype=_wide(hidden))
        entropy = torch.empty_like(logprobs)
        kept: list[Tensor] = []
        for at in _chunks(len(targets), rows):
            everything = head.logits(hidden[at]).log_softmax(dim=-1)
            logprobs[at] = everything.gather(-1, targets[at, None]).squeeze(-1)
            probabilities = everything.exp()
            entropy[at] = -torch.linalg.vecdot(probabilities, everything)
            if keep:
                kept.append(probabilities)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.settings, ctx.kept = (head.softcap, head.temperature, rows), kept
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch's own is untyped
        ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        softcap, temperature, rows = ctx.settings
        head = Head(weight, bias, softcap, temperature)
        wanted = torch.zeros_like(entropy) if of_logprobs is None else of_logprobs
        chunks = _chunks(len(targets), rows)
        kept, ctx.kept = ctx.kept, []
        grad_hidden = torch.empty_like(hidden)
        # Sums over several chunks are in at least single precision.
        sums = _wide(weight) if len(chunks) > 1 else weight.dtype
        grad_weight = torch.zeros_like(weight, dtype=sums) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=sums) if ctx.needs_input_grad[2] else None
        for number, at in enumerate(chunks):
            is_kept = bool(kept) and of_entropy is None and softcap is None
            logits = weight if is_kept else head.logits(hidden[at])  # not used if it is kept
            grad = kept[number] if kept else logits.softmax(dim=-1)
            if kept:
                kept[number] = weight  # frees the memory of the chunk after its use
            if of_entropy is None:
                grad.mul_(-wanted[at, None])
            else:
                mean = logits.logsumexp(dim=-1) - entropy[at]
                grad.mul_(-wanted[at, None] - of_entropy[at, None] * (logits - mean[:, None]))
            grad.scatter_add_(1, targets[at, None], wanted[at, None])
            if softcap is not None:  # d tanh(x) = 1 - tanh(x)^2
                grad.mul_((logits * (temperature / softcap)).square_().neg_().add_(1.0))
            grad = (grad if temperature == 1.0 else grad.div_(temperature)).to(weight.dtype)
            torch.mm(grad, weight, out=grad_hidden[at])
            if grad_weight is None:
                pass
            elif grad_weight.dtype == grad.dtype:  # avoids another [V, H] tensor for the product
                grad_weight.addmm_(grad.T, hidden[at])
            else:
                grad_weight += grad.T @ hidden[at]
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
        narrow = (g if g is None else g.to(weight.dtype) for g in (grad_weight, grad_bias))
        return grad_hidden, *narrow, None, None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunks(size: int, rows: int) -> list[slice]:
    return [slice(start, start + rows) for start in range(0, size, rows)]
