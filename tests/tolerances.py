"""How far rounding alone can part two computations of one number, on any processor.

Laws are exact and sums on a machine are not: processors add up in different orders, with registers
of different widths, with and without fused multiply-add. A bound that was measured on one of them
is too tight for the next, so bounds are derived here, and a law that is exact is tested in float64,
where the bound is far below every real mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, operations: int, scale: float = 1.0) -> float:
    """Largest difference between two correct computations of one number.

        operations * eps * scale

    Each operation is wrong by at most eps / 2 of its result, errors of operations that follow each
    other add up (a sum of n products is n operations, in any order), and the two computations may
    err in opposite directions.

    Args:
        dtype: of the arithmetic.
        operations: how many follow each other between what both were given and the number.
        scale: size of the largest number among their results.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    return operations * torch.finfo(dtype).eps * scale


def operations_through(model: Any) -> int:
    """Operations that follow each other on the way through a model and back.

    The product with a matrix of r rows and c columns adds up c terms forwards and r backwards. A
    norm adds up its size. What attention and the batch add up, a term per token, is fewer here.
    """
    return sum(sum(parameter.shape[-2:]) for parameter in model.parameters())


def in_widest_dtype(model: Any) -> Any:
    """The model in float64, or in float32 if it has experts: their product has no float64."""
    has_experts = any(parameter.ndim > 2 for parameter in model.parameters())
    return model.to(torch.float32 if has_experts else torch.float64)


def assert_same_through(model: Any, found: Tensor, expected: Tensor, what: str = "") -> None:
    """Check that two outputs of a model differ by rounding alone."""
    _assert_within(model, found, expected, max(1.0, float(expected.detach().abs().max())), what)


def assert_same_gradients(
    model: Any, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Check that gradients differ by rounding alone, relative to the largest of them."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-3, "there is no gradient to compare"
    for name, gradient in expected.items():
        _assert_within(model, found[name], gradient, largest, name)


def _assert_within(model: Any, found: Tensor, expected: Tensor, scale: float, what: str) -> None:
    assert found.dtype == expected.dtype
    gap = float((found.detach() - expected.detach()).abs().max())
    room = rounding(expected.dtype, operations_through(model), scale)
    assert gap <= room, f"{what} differs by {gap:.3g}, and rounding can do {room:.3g}"
