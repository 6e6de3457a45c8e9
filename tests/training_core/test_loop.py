"""The one training loop: a gradient never depends on how a batch was cut."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from tests.tolerances import assert_same_gradients, operations_through, rounding
from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.data.batching import collate
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import NonFiniteError
from training_core.loop import train_steps
from training_core.objectives.preference import PairBatch, preference
from training_core.objectives.reinforcement import value_objective
from training_core.objectives.supervised import supervised
from training_core.types import Example, Experience, Loss, Mean

LENGTHS = (12, 3, 7, 5, 9, 2)


class GradientKeeper:
    """An engine that divides as engines must, and keeps the gradient instead of stepping."""

    learning_rate = 1.0

    def __init__(self, model):
        self.model = model
        self.gradients = {}

    def loss(self, objective, micro_batch):
        return objective(self.model, micro_batch)

    def backward(self, total):
        total.backward()

    def step(self, count):
        self.gradients = {n: p.grad / count for n, p in self.model.named_parameters()}
        return 1.0


def ragged_examples(lengths=LENGTHS):
    """Sequences whose last half is trained."""
    generator = torch.Generator().manual_seed(1)
    return [
        Example(
            tuple(torch.randint(5, 30, (n,), generator=generator).tolist()),
            (0,) * (n - n // 2) + (1,) * (n // 2),
        )
        for n in lengths
    ]


def gradient(model, objective, micro_batches):
    engine = GradientKeeper(copy.deepcopy(model))
    (report,) = train_steps(engine, objective, [micro_batches])
    return engine.gradients, report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("cuts", [[1] * 6, [2, 4], [5, 1]])
def test_the_gradient_does_not_depend_on_the_cut(make_policy, dtype, cuts):
    policy, examples = make_policy().to(dtype), ragged_examples()
    whole, whole_report = gradient(policy, supervised, [collate(examples, 0)])
    pieces, start = [], 0
    for size in cuts:
        pieces.append(collate(examples[start : start + size], 0))
        start += size
    cut, cut_report = gradient(policy, supervised, pieces)
    assert_same_gradients(policy, cut, whole)
    room = rounding(dtype, operations_through(policy))
    assert cut_report.loss == pytest.approx(whole_report.loss, rel=room)
    assert cut_report.tokens == whole_report.tokens == sum(LENGTHS)


def test_the_critics_gradient_does_not_depend_on_the_cut(make_scalar_model):
    critic = make_scalar_model().double()
    batch = collate(ragged_examples(), 0)
    zeros = torch.zeros(batch.input_ids.shape, dtype=torch.float64)
    returns = torch.arange(zeros.numel(), dtype=torch.float64).reshape(zeros.shape) / 50
    experience = Experience(batch, zeros, zeros, returns, zeros)
    objective = value_objective(lambda values, _, goal: (values - goal) ** 2)
    whole, _ = gradient(critic, objective, [experience])
    cut, _ = gradient(critic, objective, [experience.rows(torch.tensor([i])) for i in range(6)])
    assert_same_gradients(critic, cut, whole)


def test_the_preference_gradient_counts_pairs_and_not_tokens(make_policy):
    policy = make_policy().double()
    examples = ragged_examples((9, 4, 6, 3))
    reference = torch.tensor([-4.0, -3.0, -2.0, -1.0], dtype=torch.float64)
    row = PREFERENCE_LOSSES["dpo"]
    objective = preference(
        partial(row.function, beta=1.0, label_smoothing=0.0),
        partial(implicit_rewards, row, beta=1.0),
    )
    chosen, rejected = examples[:2], examples[2:]
    whole, _ = gradient(policy, objective, [PairBatch(collate(examples, 0), reference)])
    pieces = [
        PairBatch(collate([chosen[i], rejected[i]], 0), reference[[i, i + 2]]) for i in range(2)
    ]
    cut, _ = gradient(policy, objective, pieces)
    assert_same_gradients(policy, cut, whole)


def linear_model(weight=2.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def square(model, micro_batch):
    values = model(micro_batch) ** 2
    return Loss(
        values.sum(),
        float(len(micro_batch)),
        {"size": Mean(float(micro_batch.sum()), len(micro_batch))},
    )


def test_the_sum_is_divided_once_by_the_global_count():
    micro_batches = [torch.tensor([[1.0], [1.0], [1.0]]), torch.tensor([[3.0]])]
    gradients, report = gradient(linear_model(), square, micro_batches)
    # loss = w^2 (1 + 1 + 1 + 9) / 4 = 12, and d/dw = 2 w * 12 / 4 = 12
    # (a mean of means would be w^2 (1 + 9) / 2 = 20)
    assert gradients["weight"].item() == pytest.approx(12.0)
    assert report.loss == pytest.approx(12.0)
    assert report.metrics["size"] == pytest.approx(1.5)  # (1 + 1 + 1 + 3) / 4


def test_a_micro_batch_without_loss_does_not_hide_the_others():
    def objective(model, scale):
        return Loss(model(torch.ones(1, 1)).sum() * scale, 1.0)

    gradients, _ = gradient(linear_model(), objective, [0.0, 1.0])
    assert gradients["weight"].item() == pytest.approx(0.5)  # (0 + 1) / 2


def test_steps_are_numbered_on_from_the_first_one():
    batches = [[torch.ones(1, 1)]] * 3
    reports = list(train_steps(GradientKeeper(linear_model()), square, batches, first_step=7))
    assert [r.step for r in reports] == [8, 9, 10]


def torch_engine(model, rate=0.1):
    return TorchEngine(model, learning_rate=rate, schedule=lambda _: 1.0, max_grad_norm=1e9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_loss_stops_at_its_step_and_names_its_micro_batch(bad):
    model = linear_model()
    good = torch.ones(1, 1)
    batches = [[good, good], [good, torch.full((1, 1), bad)], [good, good]]
    seen = []
    with pytest.raises(NonFiniteError, match=r"micro-batch 1 of step 2.*step 1 are kept"):
        for _ in train_steps(torch_engine(model), square, batches):
            seen.append(model.weight.item())
    assert len(seen) == 1
    assert model.weight.item() == seen[0] != 2.0  # the weights after step 1


def test_a_non_finite_gradient_leaves_weights_and_optimizer_as_they_were():
    model = linear_model(0.0)

    def root(model, micro_batch):  # sqrt has an infinite slope at 0, and a finite value
        return Loss((model(micro_batch) ** 2).sum().sqrt(), 1.0)

    engine = torch_engine(model)
    with pytest.raises(NonFiniteError, match="gradient norm is nan at step 1"):
        list(train_steps(engine, root, [[torch.ones(1, 1)]]))
    assert model.weight.item() == 0.0
    assert engine.state_dict()["optimizers"][0]["state"] == {}


def test_the_reported_learning_rate_is_the_one_that_was_used():
    engine = TorchEngine(linear_model(), learning_rate=0.5, schedule=lambda step: 1.0 / (step + 1))
    reports = list(train_steps(engine, square, [[torch.ones(1, 1)]] * 3))
    assert [r.learning_rate for r in reports] == pytest.approx([0.5, 0.25, 0.5 / 3])
