"""The chunked function against the naive one. Shapes: N positions, H hidden, V vocabulary."""

import math

import pytest
import torch

from training_core.algorithms.logprobs import Head, token_logprobs

N, H, V = 7, 5, 11


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=generator, dtype=dtype)
    weight = torch.randn(V, H, generator=generator, dtype=dtype)
    bias = torch.randn(V, generator=generator, dtype=dtype)
    targets = torch.randint(V, (N,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), targets


def naive(hidden, weight, bias, targets, temperature, *, softcap=None):
    logits = hidden @ weight.T + (0 if bias is None else bias)
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropy


def test_a_worked_position():
    # logits 0 and ln 3 -> probabilities 1/4 and 3/4
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    weight = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    logprobs, entropy = token_logprobs(hidden, Head(weight), torch.tensor([1]))
    assert logprobs.item() == pytest.approx(math.log(0.75))
    # 1/4 ln 4 + 3/4 ln 4/3 = 0.562335
    assert entropy.item() == pytest.approx(0.562335, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("keep_mib", [0.0, 1.0])  # made again in the backward pass, or kept
@pytest.mark.parametrize("chunk", [1, 3, 7, None])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.4)])  # logprobs, entropy
def test_values_and_gradients_equal_the_naive_ones(  # noqa: PLR0917
    temperature, softcap, with_bias, keep_mib, chunk, weights
):
    hidden, weight, bias, targets = problem()
    bias = bias if with_bias else None
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    upstream = torch.linspace(-1, 2, N, dtype=torch.float64)

    def gradients(logprobs, entropy):
        total = weights[0] * logprobs + weights[1] * entropy
        return torch.autograd.grad((total * upstream).sum(), inputs)

    expected = naive(hidden, weight, bias, targets, temperature, softcap=softcap)
    head = Head(weight, bias, softcap, temperature)
    found = token_logprobs(hidden, head, targets, chunk_positions=chunk, keep_mib=keep_mib)

    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(*found), gradients(*expected), rtol=0, atol=1e-12)


def test_a_tied_head_gets_the_gradients_of_both_of_its_uses():
    _, weight, _, targets = problem()
    inputs = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    found, _ = token_logprobs(weight[inputs].tanh(), Head(weight), targets, chunk_positions=2)
    expected, _ = naive(weight[inputs].tanh(), weight, None, targets, 1.0)
    (ours,) = torch.autograd.grad(found.sum(), [weight])
    (theirs,) = torch.autograd.grad(expected.sum(), [weight])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, _, targets = problem()
    logprobs, _ = token_logprobs(hidden, Head(weight.detach()), targets)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_a_logit_of_a_million_overflows_nothing():
    hidden = torch.tensor([[1e6]], requires_grad=True)
    logprobs, entropy = token_logprobs(
        hidden, Head(torch.tensor([[1.0], [0.0]])), torch.tensor([1])
    )
    assert logprobs.item() == -1e6
    assert entropy.item() == pytest.approx(0, abs=1e-3)


def test_the_same_without_gradients():
    hidden, weight, bias, targets = problem()
    with torch.no_grad():
        found, _ = token_logprobs(hidden, Head(weight, bias), targets, chunk_positions=2)
    expected, _ = naive(hidden, weight, bias, targets, 1.0)
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)


def test_half_precision_is_answered_in_float32():
    hidden, weight, _, targets = problem(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, Head(weight), targets)
    assert logprobs.dtype == entropy.dtype == torch.float32


def test_no_position_at_all_gives_nothing_and_still_has_a_gradient():
    hidden, weight, _, targets = problem()
    logprobs, entropy = token_logprobs(hidden[:0], Head(weight), targets[:0])
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.abs().sum() == 0


def test_the_importance_ratio_is_one_at_the_sampling_temperature_and_not_at_another():
    hidden, weight, _, targets = problem()
    at_sampling, _ = naive(hidden, weight, None, targets, 0.6)
    right, _ = token_logprobs(hidden, Head(weight, temperature=0.6), targets)
    wrong, _ = token_logprobs(hidden, Head(weight), targets)
    torch.testing.assert_close((right - at_sampling).exp(), torch.ones_like(right))
    assert (wrong - at_sampling).abs().max() > 0.5
