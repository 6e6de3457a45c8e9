"""Compare training: tokens per second of Ratchet and of TRL's trainers.

    python -m benchmarks training DATA [--repeats 5] [--steps 12] [--threads 2]

DATA is a folder with the files of `ROWS` and a small pretrained model. Both libraries start from
the same weights and make the same optimizer steps on the same batches of token ids (from TRL's
tokenisation), in fp32, one after the other in one process. Neither evaluates, saves or writes
curves. Both have settings that split a batch into micro-batches without an effect on the result.
Each setting is tried once, and the fastest one of each library is measured.

The token count excludes padding. A prompt that Ratchet computes once for two responses counts
twice, for both libraries. The time includes the steps and, if there is a reference, its
log-probabilities. Prints one Markdown table: medians, the ratio of each repeat as median [smallest,
largest], and the first losses, which must agree.

`--clock cpu --threads 1` measures CPU seconds of the process, for a machine that is not idle.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import nn

from benchmarks.training_rows import ROWS, load_texts, start
from benchmarks.training_trl import Task, Variant
from stages.batches.measured_items import over_all
from stages.batches.micro_batches import (
    Collator,
    Examples,
    Pairs,
    micro_batches,
    sharing_pays,
)
from stages.batches.unpaired_batches import UnpairedExamples, unpaired_batches
from stages.configs.training_config import TrainingConfig
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.unpaired_losses import kto, mismatched_kl
from training_core.data.batching import batch_indices
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import Objective, train_steps
from training_core.models.causal_lm import sequence_logprobs
from training_core.models.offloading import FrozenWeights
from training_core.models.scalar_head import sequence_scores
from training_core.objectives.preference import pairwise_reward, preference
from training_core.objectives.supervised import supervised
from training_core.objectives.unpaired import unpaired
from training_core.types import Batch, Example, MicroBatch, Pair, UnpairedExample

LEARNING_RATE = 1e-4
BETA = 0.1
COMPARED_STEPS = 3
LOSS_TOLERANCE = 1e-3
BUDGETS = (1024, 2048, 4096)
"""Values of `training.micro_batch_tokens` to try."""
HEADER = (
    "| row | model | Ratchet tokens/s | TRL tokens/s | ratio | first losses, and largest gap "
    "| micro_batch_tokens | TRL's setting |\n|---|---|---|---|---|---|---|---|"
)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CPU = torch.device("cpu")
SEED = 0
T = TypeVar("T")
Prepared = tuple[Objective, Callable[[int], Sequence[Any]]]
"""The loss of a micro-batch, and step -> micro-batches."""


@dataclass(frozen=True)
class Timed:
    """One training run.

    Attributes:
        seconds: time of the steps and of the reference's log-probabilities.
        losses: loss of each step.
    """

    seconds: float
    losses: Sequence[float]


def run(arguments: Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(arguments.threads)
    print(HEADER, flush=True)
    for model in arguments.models.split(","):
        for name in arguments.rows.split(",") if arguments.rows else ROWS:
            print(_line(name, model, arguments), flush=True)


def _line(name: str, model_name: str, arguments: Namespace) -> str:
    row, batch_size = ROWS[name], arguments.batch_size
    training = TrainingConfig(batch_size=batch_size, max_tokens=arguments.max_tokens)
    size = arguments.steps * batch_size
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = start(model_name, row, arguments.data, Path(folder))
    texts = load_texts(row, arguments.data, tokenizer, limit=size, max_tokens=arguments.max_tokens)
    order = [
        i
        for step in range(arguments.steps)
        for i in batch_indices(size, batch_size, 1.0, seed=SEED, step=step)
    ]
    in_order = [texts[i] for i in order]
    task = Task(
        row.method,
        in_order,
        model,
        tokenizer,
        batch_size,
        arguments.max_tokens,
        LEARNING_RATE,
        CLOCKS[arguments.clock],
    )
    items = [item for _, item in sorted(zip(order, task.items(), strict=True))]
    labels = [bool(text.get("label")) for text in texts]
    tokens = sum(len(e) for item in items for e in item[: 1 if row.method == "kto" else 2])

    def ours(budget: int) -> Timed:
        mine = training.model_copy(update={"micro_batch_tokens": budget})
        work = _Work(
            deepcopy(model), items, labels, mine, tokenizer.pad_token_id, CLOCKS[arguments.clock]
        )
        return work.run(row.method)

    def theirs(variant: Variant) -> Timed:
        return Timed(*task.run(variant))

    mine, their = _fastest(ours, BUDGETS), _fastest(theirs, task.variants())
    pairs = [(ours(mine), theirs(their)) for _ in range(arguments.repeats)]
    return f"| {name} | {model_name} | {_compared(name, pairs, tokens)} | {mine:,} | {their} |"


def _fastest(run: Callable[[T], Timed], settings: Sequence[T]) -> T:
    """Run each setting once, after a warm-up run, and return the fastest one."""
    run(settings[0])
    return min(settings, key=lambda setting: run(setting).seconds)


def _compared(name: str, pairs: Sequence[tuple[Timed, Timed]], tokens: int) -> str:
    """Return rates, ratio and first losses of alternating runs, as cells of the table."""
    mine, other = (run.losses[:COMPARED_STEPS] for run in pairs[-1])
    gap = max(abs(a - b) for a, b in zip(mine, other, strict=True))
    if gap > LOSS_TOLERANCE:
        raise SystemExit(
            f"{name}: expected the same losses, found {mine} in Ratchet and {other} in TRL: "
            "the two runs are not equivalent, so their times cannot be compared"
        )
    ratios = [theirs.seconds / ours.seconds for ours, theirs in pairs]
    rates = [
        f"{tokens / median(r.seconds for r in runs):,.0f}" for runs in zip(*pairs, strict=True)
    ]
    spread = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    losses = ", ".join(f"{loss:.4f}" for loss in mine) + f" ± {gap:.0e}"
    return f"{rates[0]} | {rates[1]} | {spread} | {losses}"


@dataclass(frozen=True)
class _Work:
    """The work of a stage between reading data and saving the model.

    Attributes:
        model: trained in place.
        items: sequences of each item: one, or chosen and rejected, or for KTO a response and a
            mismatched response.
        labels: whether each response is desirable.
        training: batch size and size of micro-batches.
        pad_id: token id for padding.
        clock: returns the time in seconds.
    """

    model: Any
    items: Sequence[tuple[Example, ...]]
    labels: Sequence[bool]
    training: TrainingConfig
    pad_id: int
    clock: Callable[[], float]

    def run(self, method: str) -> Timed:
        """Train on all items once."""
        prepare = {
            "sft": self.sft,
            "reward_model": self.reward_model,
            "dpo": self.dpo,
            "kto": self.kto,
        }
        self.model.train()
        began = self.clock()
        objective, batch_of = prepare[method]()
        engine = TorchEngine(self.model, learning_rate=LEARNING_RATE, schedule=lambda _: 1.0)
        steps = range(len(self.items) // self.training.batch_size)
        batches = (batch_of(step) for step in steps)
        losses = [report.loss for report in train_steps(engine, objective, batches)]
        return Timed(self.clock() - began, losses)

    def sft(self) -> Prepared:
        """Prepare SFT, as stages/sft.py does."""
        examples = Examples([example for (example,) in self.items], self.pad_id, CPU)
        return supervised, micro_batches(examples, self.training, seed=SEED)

    def reward_model(self) -> Prepared:
        """Prepare a reward model, as stages/reward_model.py does."""
        pairs = self._pairs(sequence_scores)
        loss = partial(bradley_terry, centering_coef=0.0)
        return pairwise_reward(loss), micro_batches(pairs, self.training, seed=SEED)

    def dpo(self) -> Prepared:
        """Prepare DPO, as stages/dpo.py does."""
        row, pairs = PREFERENCE_LOSSES["dpo"], self._pairs(sequence_logprobs)
        known = self._reference(pairs)
        loss = partial(row.function, beta=BETA, label_smoothing=0.0)
        objective = preference(loss, partial(implicit_rewards, row, beta=BETA))
        known_pairs = replace(pairs, ref_logprobs=known)
        return objective, micro_batches(known_pairs, self.training, seed=SEED)

    def kto(self) -> Prepared:
        """Prepare KTO, as stages/kto.py does."""
        mismatched = [other for _, other in self.items]
        rows = [
            UnpairedExample(example, label)
            for (example, _), label in zip(self.items, self.labels, strict=True)
        ]
        rated = UnpairedExamples(rows, self.pad_id, CPU, mismatched=mismatched)
        known = self._reference(rated.with_mismatched())
        loss = partial(kto, beta=BETA, desirable_weight=1.0, undesirable_weight=1.0)
        rated = replace(rated, ref_logprobs=known)
        batch_of = unpaired_batches(
            FrozenWeights(self.model, CPU), rated, self.training, mismatched_kl, seed=SEED
        )
        return unpaired(loss, beta=BETA), batch_of

    def _pairs(self, measure: Callable[[Any, Batch], torch.Tensor]) -> Pairs:
        pairs = [Pair(chosen, rejected) for chosen, rejected in self.items]
        shares = sharing_pays(
            FrozenWeights(self.model, CPU),
            pairs,
            self.pad_id,
            measure,
            is_sum=measure is sequence_logprobs,
        )
        return Pairs(pairs, self.pad_id, CPU, shares_prompts=shares)

    def _reference(self, collator: Collator[MicroBatch]) -> torch.Tensor:
        """Compute the log-probabilities before the first step."""

        def sums(model: nn.Module, batch: MicroBatch) -> torch.Tensor:
            return sequence_logprobs(model, batch.batch)

        return over_all(
            FrozenWeights(self.model, CPU),
            collator,
            sums,
            budget_tokens=self.training.micro_batch_tokens,
            columns=2,
        )
