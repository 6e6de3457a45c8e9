"""Canaries that let the model compute: padding, micro-batches, an equal reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from stages.canaries.probe import Probe
from stages.canaries.token_checks import CanaryFinding
from training_core.data.chat import pad_id
from training_core.types import Batch, Example

HALF_GAP = 0.05
"""Largest mean log-ratio per token in half precision, where sums are inexact; in nats."""
EXTRA = 7
"""Tokens of padding beyond the longest sequence; odd, because kernels like multiples of 8."""


def padding_invariance(probe: Probe) -> CanaryFinding | None:
    """Compare what the model computes on each sequence alone with all in one padded batch."""
    if probe.compute is None or len(probe.computed) < 2:  # noqa: PLR2004 - to compare
        return None
    pad, longest = pad_id(probe.tokenizer), max(map(len, probe.computed))
    rows = partial(_padded, probe.computed, pad, device=probe.device)
    sides = {
        "on the right": rows(longest, is_left=False),
        "on the left": rows(longest, is_left=True),
        f"on the left, {EXTRA} more": rows(longest + EXTRA, is_left=True),
        f"on the right, {EXTRA} more": rows(longest + EXTRA, is_left=False),
    }
    alone = [
        probe.compute(_padded([one], pad, len(one), probe.device, is_left=False))
        for one in probe.computed
    ]
    sizes = [len(each) for each in alone]
    worst = ("", 0, 0.0)
    for side, batch in sides.items():
        together = probe.compute(batch).split(sizes)
        for number, (one, other) in enumerate(zip(alone, together, strict=True), 1):
            gap = _mean_gap(one, other)
            if not gap <= worst[2]:
                worst = (side, number, gap)
    side, number, gap = worst
    return CanaryFinding(
        gap,
        probe.rounding,
        "expected the same numbers for a sequence alone and in a padded batch, found that "
        f"sequence {number} of {len(alone)} differs by {gap:.3g} per token if it is padded {side} "
        f"(rounding: {probe.rounding:.1g}); its attention sees the padding, or its positions count "
        "it. Use another `model.attention`, or an architecture that can be padded; "
        "skip_canaries: [padding_invariance] accepts it",
    )


def split_invariance(probe: Probe) -> CanaryFinding | None:
    """Compare the loss of some items as one micro-batch, as two, and one by one."""
    if probe.loss_of is None or probe.items < 2:  # noqa: PLR2004 - to split
        return None
    items, half = list(range(probe.items)), probe.items // 2
    cuts = {1: [items], 2: [items[:half], items[half:]], probe.items: [[i] for i in items]}
    losses: dict[int, float] = {}
    for parts, cut in cuts.items():
        found = [probe.loss_of(some) for some in cut]
        losses[parts] = sum(float(x.total.detach()) for x in found) / sum(x.count for x in found)
    gap = max(abs(loss - losses[1]) for loss in losses.values())
    limit = probe.rounding * max(1.0, abs(losses[1]))
    shown = ", ".join(f"{loss:.6g} in {parts}" for parts, loss in losses.items())
    return CanaryFinding(
        gap if all(map(math.isfinite, losses.values())) else math.nan,
        limit,
        f"expected one loss of {probe.items} items however they are cut into micro-batches, found "
        f"{shown} (rounding: {limit:.1g}); the loss must be a sum and a count over the items. If "
        "the rows and the loss are Ratchet's own, please report this bug",
    )


def equal_reference(probe: Probe) -> CanaryFinding | None:
    """Measure the log-ratios of policy to reference, if they are one model; of pairs, the loss."""
    start = probe.equal_reference
    if start is None or not len(start.log_ratios):
        return None
    ratios, expected = start.log_ratios, "the log-ratios of the two must start at 0"
    found = value = float(ratios.abs().mean())
    if ratios.shape[1] == 2:  # noqa: PLR2004 - chosen and rejected
        expected = "the DPO loss must start at ln 2 = 0.6931"
        value = float(torch.nn.functional.softplus(ratios[:, 1] - ratios[:, 0]).mean())
        found = abs(value - math.log(2))
    if start.is_half:  # where sums are inexact
        found = float(ratios.abs().sum()) / start.tokens
    return CanaryFinding(
        found,
        HALF_GAP if start.is_half else start.rounding,
        f"policy and reference are one model, so {expected}, found {value:.4f} "
        f"(torch {torch.__version__}): the log-probabilities of the reference are wrong. If they "
        "were read from `<store>/cache`, delete that folder; otherwise please report this bug",
    )


def _padded(
    examples: Sequence[Example], pad: int, width: int, device: torch.device, *, is_left: bool
) -> Batch:
    """Put sequences into rows of `width`, padded on one side; see `collate`."""
    ids = torch.full((len(examples), width), pad, dtype=torch.int64)
    attention = torch.zeros((len(examples), width), dtype=torch.bool)
    loss = torch.zeros((len(examples), width), dtype=torch.bool)
    for row, example in enumerate(examples):
        start = width - len(example) if is_left else 0
        here = slice(start, start + len(example))
        ids[row, here] = torch.tensor(example.input_ids)
        attention[row, here] = True
        loss[row, here] = torch.tensor(example.loss_mask, dtype=torch.bool)
        loss[row, start] = False  # no token predicts the first one
    return Batch(ids.to(device), attention.to(device), loss.to(device))


def _mean_gap(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().mean())
