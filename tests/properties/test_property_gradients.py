"""How a batch is cut, padded or ordered never changes a gradient. Shapes: B sequences, T tokens."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.families.objectives import cases
from tests.properties.examples import examples
from tests.tolerances import assert_same_gradients
from training_core.algorithms.advantages import gae, token_rewards
from training_core.algorithms.logprobs import Head, token_logprobs
from training_core.algorithms.masking import masked_mean, masked_sum, whiten
from training_core.data.batching import collate, cut_by_tokens
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised
from training_core.types import Batch, Example

few = examples(20)
many = examples(60)

examples_of_any_length = st.lists(
    st.tuples(st.integers(2, 12), st.integers(0, 10_000)), min_size=1, max_size=6
).map(lambda sizes: [example(*size) for size in sizes])


def example(length, seed):
    """At least its last token is trained."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 30, (length,), generator=generator).tolist()
    mask = torch.randint(2, (length,), generator=generator).tolist()
    return Example(tuple(ids), (*mask[:-1], 1))


class GradientKeeper:
    """An engine that divides as engines must, and keeps the gradient instead of stepping."""

    learning_rate = 1.0

    def __init__(self, model):
        self.model = model

    def loss(self, objective, micro_batch):
        return objective(self.model, micro_batch)

    def backward(self, total):
        total.backward()

    def step(self, count):
        self.gradient = {n: p.grad / count for n, p in self.model.named_parameters()}
        self.model.zero_grad()
        return 1.0


def gradient(model, micro_batches):
    engine = GradientKeeper(model)
    list(train_steps(engine, supervised, [micro_batches]))
    return engine.gradient


@pytest.fixture(scope="module")
def policy():
    """A GPT-2, because Llama's norms compute in float32 whatever the model's precision."""
    return copy.deepcopy(cases()["supervised"].model).double()


@few
@given(examples=examples_of_any_length, budget=st.integers(1, 80))
def test_the_micro_batch_budget_never_changes_the_gradient(policy, examples, budget):
    cuts = cut_by_tokens([len(e) for e in examples], budget)
    pieces = [collate([examples[i] for i in cut], 0) for cut in cuts]
    expected = gradient(policy, [collate(examples, 0)])
    assert_same_gradients(policy, gradient(policy, pieces), expected)


@few
@given(examples=examples_of_any_length, extra=st.integers(0, 6), pad_id=st.integers(0, 30))
def test_padding_never_changes_the_gradient(policy, examples, extra, pad_id):
    batch, pad = collate(examples, 0), torch.nn.functional.pad
    wide = Batch(
        pad(collate(examples, pad_id).input_ids, (0, extra), value=pad_id),
        pad(batch.attention_mask, (0, extra)),
        pad(batch.loss_mask, (0, extra)),
    )
    assert_same_gradients(policy, gradient(policy, [wide]), gradient(policy, [batch]))


@few
@given(examples=examples_of_any_length, data=st.data())
def test_the_order_of_a_batch_never_changes_the_gradient(policy, examples, data):
    turned = data.draw(st.permutations(examples))
    expected = gradient(policy, [collate(examples, 0)])
    assert_same_gradients(policy, gradient(policy, [collate(turned, 0)]), expected)


@many
@given(
    positions=st.integers(1, 9),
    vocabulary=st.integers(2, 12),
    chunk=st.integers(1, 12),
    temperature=st.floats(0.2, 5.0),
    seed=st.integers(0, 10_000),
)
def test_chunked_logprobs_are_the_naive_ones(positions, vocabulary, chunk, temperature, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    hidden, weight, bias = draw(positions, 4), draw(vocabulary, 4), draw(vocabulary)
    targets = torch.randint(vocabulary, (positions,), generator=generator)
    upstream = torch.randn(positions, generator=generator, dtype=torch.float64)
    inputs = (hidden, weight, bias)

    naive = ((hidden @ weight.T + bias) / temperature).log_softmax(-1)
    expected = naive.gather(1, targets[:, None]).squeeze(1)
    found, entropy = token_logprobs(
        hidden, Head(weight, bias, temperature=temperature), targets, chunk_positions=chunk
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(entropy, -(naive.exp() * naive).sum(-1), rtol=0, atol=1e-11)
    gradients = zip(
        torch.autograd.grad((found * upstream).sum(), inputs),
        torch.autograd.grad((expected * upstream).sum(), inputs),
        strict=True,
    )
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def with_gaps(rows, gaps, fill):
    """`rows` [B, T] with `gaps[t]` columns of `fill` put before column t (and after the last)."""
    columns = []
    for t, gap in enumerate(gaps):
        columns += [torch.full_like(rows[:, :1], fill)] * gap
        if t < rows.shape[1]:
            columns.append(rows[:, t : t + 1])
    return torch.cat(columns, dim=1)


@many
@given(
    gaps=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    seed=st.integers(0, 10_000),
    fill=st.sampled_from([0.0, 100.0, float("nan")]),
)
def test_columns_outside_the_mask_never_change_an_advantage(gaps, gamma, gae_lambda, seed, fill):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, generator=generator, dtype=torch.float64)
    kl, values = torch.randn(2, 2, 4, generator=generator, dtype=torch.float64)

    def estimate(kl, values, mask):
        rewards = token_rewards(scores, kl, mask, kl_coef=0.1)
        advantages, returns = gae(rewards, values, mask, gamma=gamma, gae_lambda=gae_lambda)
        return whiten(advantages, mask)[mask], returns[mask]

    dense = estimate(kl, values, torch.ones(2, 4, dtype=torch.bool))
    mask = with_gaps(torch.ones(2, 4), gaps, 0.0).bool()
    gapped = estimate(with_gaps(kl, gaps, fill), with_gaps(values, gaps, fill), mask)
    for found, expected in zip(gapped, dense, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@many
@given(
    values=st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans()), min_size=1, max_size=12),
    junk=st.sampled_from([0.0, float("nan"), float("inf")]),
)
def test_masked_reductions_see_the_chosen_alone(values, junk):
    chosen = [v for v, keep in values if keep]
    mask = torch.tensor([keep for _, keep in values])
    tensor = torch.tensor([v if keep else junk for v, keep in values], dtype=torch.float64)
    assert abs(masked_sum(tensor, mask).item() - sum(chosen)) < 1e-8
    mean = sum(chosen) / len(chosen) if chosen else 0.0
    assert abs(masked_mean(tensor, mask).item() - mean) < 1e-8
    white = whiten(tensor, mask)
    assert white[~mask].abs().sum() == 0
    assert abs(white.sum().item()) < 1e-4
