"""How the transformers engine draws tokens: the distribution, and one generator per row.

Shapes: B rows, V vocabulary, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from training_core.rollout.sampling import Sampling

SMALLEST = 2.0**-25
"""Stands for a drawn 0, i.e. any number below numpy's resolution in single precision."""


def truncation(sampling: Sampling) -> list[LogitsProcessor]:
    """Return what turns logits into those of the sampled distribution; nothing if it is greedy.

    The order is that of vLLM; `transformers.generate` itself applies `min_p` last.
    """
    if sampling.temperature == 0:
        return []
    steps: list[LogitsProcessor] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.min_p > 0:
        steps.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k is not None:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    return steps


class SeededChoice(LogitsProcessor):
    """Makes the arg-max of the logits a sample of their softmax, with one generator per row.

        argmax_v(logits_v + g_v) ~ softmax(logits)
        g_v = -log(e_v), e_v exponentially distributed

    So a response depends on its own seed and not on the other rows of the batch. It also records
    the log-probabilities of the chosen tokens. Rows can leave; the others are not disturbed.

    Args:
        seeds: one per row.
        sampling: if it is greedy, nothing is added to the logits.

    Attributes:
        truncation: what must be applied to the logits before.

    Source:
        Gumbel 1954; Maddison, Tarlow & Minka 2014, eq. 2, https://arxiv.org/abs/1411.0030
    """

    def __init__(self, seeds: Sequence[int], sampling: Sampling) -> None:
        is_greedy = sampling.temperature == 0
        self.truncation = truncation(sampling)
        self._generators = [] if is_greedy else [np.random.default_rng(seed) for seed in seeds]
        self._logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> torch.FloatTensor:
        """Perturb `scores` [B, V], the logits of the sampled distribution."""
        del input_ids
        scores = scores.float()
        noisy = scores - self._exponential(scores).log() if self._generators else scores
        chosen = noisy.argmax(dim=-1, keepdim=True)
        self._logprobs.append(scores.log_softmax(-1).gather(1, chosen).cpu())
        return cast("torch.FloatTensor", noisy)

    def take_logprobs(self) -> Tensor:
        """Return the log-probabilities [B, T] of the tokens chosen since the last call."""
        taken, self._logprobs = torch.cat(self._logprobs, dim=1), []
        return taken

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._generators = [self._generators[row] for row in rows if self._generators]

    def _exponential(self, like: Tensor) -> Tensor:
        drawn = np.empty(like.shape, dtype=np.float32)
        for row, generator in zip(drawn, self._generators, strict=True):
            generator.standard_exponential(out=row, dtype=np.float32)  # faster than torch's
        return torch.from_numpy(drawn).clamp_(min=SMALLEST).to(like.device)
