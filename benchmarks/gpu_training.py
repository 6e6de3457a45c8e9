"""Steps of SFT, reward model, DPO and KTO, for the benchmark `gpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_models import (
    UNTIMED,
    Case,
    Measured,
    in_precision,
    make_engine,
    make_model,
    seconds_of,
    size_of,
)
from benchmarks.gpu_rows import count_flops, count_tokens, random_rows
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.unpaired_losses import kto, mismatched_kl
from training_core.data.batching import collate, cut_by_tokens
from training_core.data.layout import collate_packed, collate_shared, row_length
from training_core.loop import Objective, train_steps
from training_core.models.causal_lm import can_branch, sequence_logprobs
from training_core.objectives.preference import PairBatch, pairwise_reward, preference
from training_core.objectives.supervised import supervised
from training_core.objectives.unpaired import UnpairedBatch, unpaired
from training_core.types import Batch, Example

BETA = 0.1


@dataclass(frozen=True)
class Setting:
    """How rows become micro-batches.

    Attributes:
        device: device of the micro-batches.
        budget_tokens: largest number of padded tokens in a micro-batch.
        packs: whether a micro-batch is one row, for flash kernels.
        shares: whether the prompt of a pair is computed only once.
    """

    device: torch.device
    budget_tokens: int
    packs: bool
    shares: bool

    def cut(self, groups: Sequence[tuple[Example, ...]]) -> Iterator[tuple[list[int], Batch]]:
        """Yield the indices of some groups, and their sequences: first all first members."""
        shares = self.shares and len(groups[0]) > 1
        lengths = [row_length(g) if shares else len(g) * max(map(len, g)) for g in groups]
        for members in cut_by_tokens(lengths, self.budget_tokens):
            some = [groups[i] for i in members]
            if shares:
                yield members, collate_shared(some, 0, self.device)
                continue
            flat = [example for side in zip(*some, strict=True) for example in side]
            packed = collate_packed([flat], 0, self.device) if self.packs else None
            yield members, packed or collate(flat, 0, self.device)

    def measured(self, model: Any, groups: Sequence[tuple[Example, ...]]) -> Tensor:
        """Log-probabilities [number of groups, members] of all sequences, without gradient."""
        found = torch.zeros(len(groups), len(groups[0]), device=self.device)
        with torch.no_grad():
            for members, batch in self.cut(groups):
                sums = sequence_logprobs(model, batch).float()
                found[members] = sums.reshape(len(groups[0]), -1).T
        return found


def train(case: Case) -> Measured:
    """Time optimizer steps; the policy is also the reference, which takes the same time."""
    model = make_model(case, is_scalar=case.method == "reward model")
    setting = Setting(case.device, case.micro_batch_tokens, case.packs, can_branch(model))
    vocabulary = model.config.vocab_size
    steps = [random_rows(case, vocabulary, seed) for seed in range(UNTIMED + case.steps)]
    measure = in_precision(setting.measured, case)
    batches = (_micro_batches(case.method, model, groups, setting, measure) for groups in steps)
    objective = in_precision(_objective(case.method), case)
    reports = train_steps(make_engine(model, case), objective, batches)
    seconds = seconds_of(case, lambda _: next(reports), case.steps)
    timed = steps[UNTIMED:]
    return Measured(
        size_of(model),
        sum(count_tokens(case.method, groups) for groups in timed),
        sum(count_flops(case.method, model.config, groups, setting.shares) for groups in timed),
        seconds,
    )


def _micro_batches(
    method: str,
    model: Any,
    groups: Sequence[tuple[Example, ...]],
    setting: Setting,
    measure: Callable[..., Tensor],
) -> list[Any]:
    if method == "sft":
        return [batch for _, batch in setting.cut(groups)]
    if method == "reward model":
        return [PairBatch(batch) for _, batch in setting.cut(groups)]
    reference = measure(model, groups)
    if method == "dpo":
        return [
            PairBatch(b, reference[members].T.reshape(-1)) for members, b in setting.cut(groups)
        ]
    mismatched = measure(model, [group[1:] for group in groups])[:, 0]
    baseline = mismatched_kl(mismatched - reference[:, 1])
    is_desirable = torch.arange(len(groups), device=setting.device) % 2 == 0
    return [
        UnpairedBatch(batch, is_desirable[members], reference[members, 0], baseline)
        for members, batch in setting.cut([group[:1] for group in groups])
    ]


def _objective(method: str) -> Objective:
    if method == "sft":
        return supervised
    if method == "reward model":
        return pairwise_reward(partial(bradley_terry, centering_coef=0.0))
    if method == "dpo":
        row = PREFERENCE_LOSSES["dpo"]
        loss = partial(row.function, beta=BETA, label_smoothing=0.0)
        return preference(loss, partial(implicit_rewards, row, beta=BETA))
    return unpaired(
        partial(kto, beta=BETA, desirable_weight=1.0, undesirable_weight=1.0), beta=BETA
    )
