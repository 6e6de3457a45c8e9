"""Solutions with labelled steps as micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from stages.batches.measured_items import measured
from training_core.data.batching import collate
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models.computing import Computing
from training_core.models.step_head import step_scores
from training_core.objectives.step_labels import StepBatch
from training_core.types import LabelledSolution


@dataclass(frozen=True)
class LabelledSolutions:
    """Collator of solutions, one per row."""

    solutions: Sequence[LabelledSolution]
    pad_id: int
    device: torch.device

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of tokens of each solution."""
        return self._lengths

    @cached_property
    def _lengths(self) -> list[int]:
        return [len(solution.example) for solution in self.solutions]

    def __call__(self, indices: Sequence[int]) -> StepBatch:
        """Pad some solutions; steps without a label are left out."""
        some = [self.solutions[i] for i in indices]
        judged = [
            ((row, end), label)
            for row, solution in enumerate(some)
            for end, label in zip(solution.step_ends, solution.labels, strict=True)
            if label is not None
        ]
        return StepBatch(
            collate([solution.example for solution in some], self.pad_id, self.device),
            torch.tensor([end for end, _ in judged], dtype=torch.int64, device=self.device).reshape(
                -1, 2
            ),
            torch.tensor([label for _, label in judged], dtype=torch.float32, device=self.device),
        )


def judged_steps(
    model: Computing,
    rows: LabelledSolutions,
    *,
    budget_tokens: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> tuple[Tensor, Tensor]:
    """Score every labelled step; see `measured`.

    Returns:
        scores [K] (log-odds of being right) and labels [K], on the CPU.
    """

    def judge(model: nn.Module, batch: StepBatch) -> tuple[Tensor, Tensor]:
        scores = step_scores(model, batch.batch, batch.ends).float().cpu()
        return scores, batch.labels.float().cpu()

    parts = measured(model, rows, judge, budget_tokens=budget_tokens, dist_info=dist_info)
    scores = [torch.empty(0), *(scores for _, (scores, _) in parts)]
    labels = [torch.empty(0), *(labels for _, (_, labels) in parts)]
    return torch.cat(scores), torch.cat(labels)
