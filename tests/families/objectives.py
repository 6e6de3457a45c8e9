"""Every objective of supervised and preference training on one tiny GPT-2, ready to be cut.

GPT-2, because Llama's norms compute in float32 whatever the model's precision, which hides
everything below 1e-7.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
)

from tests.families.layouts import Laid, padded_right
from training_core.algorithms.distillation_losses import DIVERGENCES
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.process_losses import step_cross_entropy
from training_core.algorithms.reward_losses import REWARD_LOSSES
from training_core.algorithms.unpaired_losses import UNPAIRED_LOSSES
from training_core.loop import Objective, train_steps
from training_core.models.offloading import FrozenWeights
from training_core.objectives.divergence import distillation
from training_core.objectives.preference import PairBatch, pairwise_reward, preference
from training_core.objectives.step_labels import StepBatch, process_reward
from training_core.objectives.supervised import supervised
from training_core.objectives.unpaired import UnpairedBatch, unpaired
from training_core.types import Example

Layout = Callable[[Sequence[Example]], Laid]
BETAS = {"dpo": 0.5, "orpo": 0.7}
SETTINGS: dict[str, dict[str, float]] = {
    "dpo": {"label_smoothing": 0.1},
    "robust": {"label_smoothing": 0.1},
    "dpo_norm": {"label_smoothing": 0.0},
    "simpo": {"gamma": 1.0},
    "jsd": {"beta": 0.3},
}


@dataclass(frozen=True)
class Case:
    """An objective and its items.

    Attributes:
        model: float32.
        build: dtype -> the objective (a teacher has a dtype, too).
        size: number of items.
        batch: (items, layout, dtype) -> micro-batch.
        is_paired: whether an item is two sequences with one prompt.
    """

    model: Any
    build: Callable[[torch.dtype], Objective]
    size: int
    batch: Callable[[Sequence[int], Layout, torch.dtype], Any]
    is_paired: bool = False


def gradient(
    case: Case, dtype: torch.dtype, cuts: Sequence[Sequence[int]], layout: Layout = padded_right
) -> dict[str, torch.Tensor]:
    """The gradient of one optimizer step whose micro-batches are `cuts`, as the loop divides it."""
    engine = GradientKeeper(copy.deepcopy(case.model).to(dtype))
    micro_batches = [case.batch(items, layout, dtype) for items in cuts]
    list(train_steps(engine, case.build(dtype), [micro_batches]))
    return engine.gradients


class GradientKeeper:
    """An engine that divides as engines must, and keeps the gradient instead of stepping."""

    learning_rate = 1.0

    def __init__(self, model: Any) -> None:
        self.model = model
        self.gradients: dict[str, torch.Tensor] = {}

    def loss(self, objective: Objective, micro_batch: Any) -> Any:
        return objective(self.model, micro_batch)

    def backward(self, total: torch.Tensor) -> None:
        total.backward()

    def step(self, count: float) -> float:
        found = {n: p.grad for n, p in self.model.named_parameters()}
        self.gradients = {n: g / count for n, g in found.items() if g is not None}
        return 1.0


@cache
def cases() -> dict[str, Case]:
    """Every row of every table of losses, by name."""
    found = {"supervised": Case(_model(), lambda _: supervised, 5, _examples)}
    found |= {f"distillation {name}": _distillation(name) for name in DIVERGENCES}
    found |= {f"preference {name}": _preference(name) for name in PREFERENCE_LOSSES}
    found["preference dpo with nll"] = _preference("dpo", nll_coef=0.2)
    found |= {f"reward {name}": _reward(name) for name in REWARD_LOSSES}
    found |= {f"unpaired {name}": _unpaired(name) for name in UNPAIRED_LOSSES}
    scorer = _model(GPT2ForTokenClassification, num_labels=2)
    found["process"] = Case(scorer, lambda _: process_reward(step_cross_entropy), 5, _steps)
    return found


def _model(kind: Any = GPT2LMHeadModel, *, seed: int = 0, **settings: Any) -> Any:
    config = GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64, pad_token_id=0, **settings
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind(config)
        for parameter in model.parameters():  # the default is too small to see anything
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def _sequence(prompt: int, response: int, seed: int) -> Example:
    """Prompts of one length are one prompt, so that two responses can share it."""
    beginning = [(7 * prompt + 3 * i) % 35 + 2 for i in range(prompt)]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 40, (response,), generator=generator).tolist()
    return Example((*beginning, *ids), (0,) * prompt + (1,) * response)


FIRST = [_sequence(p, r, 10 + p) for p, r in ((2, 3), (5, 1), (3, 6), (1, 2), (4, 4))]
SECOND = [_sequence(p, r, 20 + p) for p, r in ((2, 5), (5, 2), (3, 1), (1, 4), (4, 4))]


def _references(count: int) -> torch.Tensor:
    return -torch.arange(1, count + 1, dtype=torch.float64) - 0.25


def _examples(items: Sequence[int], layout: Layout, dtype: torch.dtype) -> Any:
    del dtype
    return layout([FIRST[i] for i in items]).batch


def _distillation(name: str) -> Case:
    def build(dtype: torch.dtype) -> Objective:
        return distillation(
            FrozenWeights(_model(seed=5).to(dtype).requires_grad_(False), torch.device("cpu")),
            DIVERGENCES[name],
            temperature=1.5,
            nll_coef=0.2,
            **SETTINGS.get(name, {}),
        )

    return Case(_model(), build, 5, _examples)


def _pairs(items: Sequence[int], layout: Layout, dtype: torch.dtype) -> PairBatch:
    members = [FIRST[i] for i in items] + [SECOND[i] for i in items]
    rows = _references(10).reshape(5, 2)[list(items)].T.reshape(-1).to(dtype)
    margins = torch.tensor([0.1 * i for i in items], dtype=dtype)
    return PairBatch(layout(members).batch, rows, margins)


def _preference(name: str, *, nll_coef: float = 0.0) -> Case:
    row, beta = PREFERENCE_LOSSES[name], BETAS.get(name, 0.3)
    objective = preference(
        partial(row.function, beta=beta, **SETTINGS.get(name, {})),
        partial(implicit_rewards, row, beta=beta),
        nll_coef=nll_coef,
    )
    return Case(_model(), lambda _: objective, 5, _pairs, is_paired=True)


def _reward(name: str) -> Case:
    objective = pairwise_reward(partial(REWARD_LOSSES[name], centering_coef=0.01))
    scorer = _model(GPT2ForSequenceClassification, num_labels=1)
    return Case(scorer, lambda _: objective, 5, _pairs, is_paired=True)


def _unpaired(name: str) -> Case:
    weights = {"beta": 0.3, "desirable_weight": 1.0, "undesirable_weight": 1.5}
    objective = unpaired(partial(UNPAIRED_LOSSES[name].function, **weights), beta=0.3)

    def batch(items: Sequence[int], layout: Layout, dtype: torch.dtype) -> UnpairedBatch:
        return UnpairedBatch(
            layout([FIRST[i] for i in items]).batch,
            torch.tensor([i % 2 == 0 for i in items]),
            _references(5)[list(items)].to(dtype),
            torch.tensor(0.4, dtype=dtype),  # measured on the whole batch, before the cut
        )

    return Case(_model(), lambda _: objective, 5, batch)


def _steps(items: Sequence[int], layout: Layout, dtype: torch.dtype) -> StepBatch:
    """Each response is one or two steps: its middle, and its end."""
    laid = layout([FIRST[i] for i in items])
    ends, labels = [], []
    for sequence, item in enumerate(items):
        first = FIRST[item].loss_mask.index(1)
        for column in sorted({(first + len(FIRST[item])) // 2, len(FIRST[item]) - 1}):
            ends.append(laid.moved(sequence, column))
            labels.append(((item + column) % 3) / 2)  # 0, 0.5 or 1: hard and soft
    return StepBatch(laid.batch, torch.tensor(ends), torch.tensor(labels, dtype=dtype))
