"""Divergences between distributions: hand arithmetic, laws, and chunked equals naive."""

import math

import pytest
import torch

from training_core.algorithms.distillation_losses import (
    DIVERGENCES,
    forward_kl,
    jsd,
    reverse_kl,
    token_divergence,
)
from training_core.algorithms.logprobs import Head

LN_2 = math.log(2)
ROWS = [("forward_kl", {}), ("reverse_kl", {}), ("jsd", {"beta": 0.5}), ("jsd", {"beta": 0.1})]
EVERY_ROW = pytest.mark.parametrize(
    ("name", "hyperparameters"), ROWS, ids=["forward_kl", "reverse_kl", "jsd_0.5", "jsd_0.1"]
)


def logprobs(*probabilities):
    return torch.tensor([probabilities], dtype=torch.float64).log()


def random_logprobs(seed, positions=6, vocabulary=9):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(positions, vocabulary, generator=generator, dtype=torch.float64)
    return (2 * logits).log_softmax(dim=-1)


# ------------------------------------------------------------------ hand arithmetic


def test_both_kls_of_a_worked_pair():
    student, teacher = logprobs(0.5, 0.5), logprobs(0.25, 0.75)
    # KL(T || S) = 1/4 ln(1/2) + 3/4 ln(3/2) = 0.130812
    assert forward_kl(student, teacher).item() == pytest.approx(0.130812, abs=1e-6)
    # KL(S || T) = 1/2 ln 2 + 1/2 ln(2/3) = 0.143841
    assert reverse_kl(student, teacher).item() == pytest.approx(0.143841, abs=1e-6)


def test_jsd_of_a_worked_pair():
    # M = 3/4 (1/4, 3/4) + 1/4 (1/2, 1/2) = (5/16, 11/16)
    # KL(T || M) = 1/4 ln(4/5) + 3/4 ln(12/11) = 0.009473
    # KL(S || M) = 1/2 ln(8/5) + 1/2 ln(8/11) = 0.075775
    # 3/4 * 0.009473 + 1/4 * 0.075775 = 0.026048
    found = jsd(logprobs(0.5, 0.5), logprobs(0.25, 0.75), beta=0.75)
    assert found.item() == pytest.approx(0.026048, abs=1e-6)


# ------------------------------------------------------------------ laws


@EVERY_ROW
def test_a_divergence_is_zero_between_equals_and_positive_otherwise(name, hyperparameters):
    function = DIVERGENCES[name].function
    student, teacher = random_logprobs(0), random_logprobs(1)
    assert function(student, student, **hyperparameters).abs().max() < 1e-15
    assert (function(student, teacher, **hyperparameters) > 0.01).all()


def test_jsd_is_symmetric_at_one_half_and_at_most_ln_2():
    student, teacher = random_logprobs(0), random_logprobs(1)
    there, back = jsd(student, teacher, beta=0.5), jsd(teacher, student, beta=0.5)
    torch.testing.assert_close(there, back, rtol=0, atol=1e-15)
    worlds_apart = jsd(torch.tensor([[0.0, -1e4]]), torch.tensor([[-1e4, 0.0]]), beta=0.5)
    assert worlds_apart.item() == pytest.approx(LN_2)


def test_near_its_ends_jsd_is_a_share_of_the_kls():
    student, teacher = random_logprobs(0), random_logprobs(1)
    tiny = 1e-6
    torch.testing.assert_close(
        jsd(student, teacher, beta=tiny) / tiny, forward_kl(student, teacher), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        jsd(student, teacher, beta=1 - tiny) / tiny,
        reverse_kl(student, teacher),
        rtol=1e-3,
        atol=1e-3,
    )


@EVERY_ROW
def test_the_gradient_of_a_row_is_that_of_its_function(name, hyperparameters):
    row = DIVERGENCES[name]
    logits = random_logprobs(0).requires_grad_()
    teacher = random_logprobs(1)
    value = row.function(logits.log_softmax(dim=-1), teacher, **hyperparameters)
    (expected,) = torch.autograd.grad(value.sum(), logits)
    found = row.gradient(logits.detach().log_softmax(dim=-1), teacher, **hyperparameters)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


# ------------------------------------------------------------------ chunked = naive


def heads(softcap=None, temperature=1.0, bias=True, dtype=torch.float64):
    """Student of width 4 and teacher of width 6 over 7 tokens, at 5 positions."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    student = draw(5, 4).requires_grad_(), draw(7, 4).requires_grad_(), draw(7).requires_grad_()
    teacher = draw(5, 6), draw(7, 6), draw(7)
    return [
        (hidden, Head(weight, offset if bias else None, softcap, temperature))
        for hidden, weight, offset in (student, teacher)
    ]


def naive_logprobs(hidden, head):
    logits = hidden @ head.weight.T
    logits = logits if head.bias is None else logits + head.bias
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return (logits / head.temperature).log_softmax(dim=-1)


@pytest.mark.parametrize("keep_mib", [0.0, 1.0], ids=["made_again", "kept"])
@pytest.mark.parametrize("chunk_positions", [1, 2, 5, 100])
@pytest.mark.parametrize("scaling", [(None, 1.0), (None, 0.7), (1.5, 2.0)])
@EVERY_ROW
def test_chunked_divergences_are_the_naive_ones(
    name, hyperparameters, scaling, chunk_positions, keep_mib
):
    student, teacher = heads(*scaling)
    inputs = (student[0], student[1].weight, student[1].bias)
    upstream = torch.linspace(-1, 2, 5, dtype=torch.float64)
    found = token_divergence(
        DIVERGENCES[name],
        *student,
        *teacher,
        chunk_positions=chunk_positions,
        keep_mib=keep_mib,
        **hyperparameters,
    )
    expected = DIVERGENCES[name].function(
        naive_logprobs(*student), naive_logprobs(*teacher), **hyperparameters
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = zip(
        torch.autograd.grad((found * upstream).sum(), inputs),
        torch.autograd.grad((expected * upstream).sum(), inputs),
        strict=True,
    )
    for ours, theirs in gradients:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@EVERY_ROW
def test_gradients_are_those_of_finite_differences(name, hyperparameters):
    (hidden, head), teacher = heads()

    def divergence(hidden, weight, bias):
        return token_divergence(
            DIVERGENCES[name],
            hidden,
            Head(weight, bias),
            *teacher,
            chunk_positions=2,
            **hyperparameters,
        )

    assert torch.autograd.gradcheck(divergence, (hidden, head.weight, head.bias))


def test_the_teacher_never_gets_a_gradient():
    student, (teacher_hidden, teacher_head) = heads(bias=False)
    teacher_hidden.requires_grad_()
    teacher_head.weight.requires_grad_()
    token_divergence(
        DIVERGENCES["jsd"], *student, teacher_hidden, teacher_head, beta=0.5
    ).sum().backward()
    assert student[0].grad is not None
    assert teacher_hidden.grad is None
    assert teacher_head.weight.grad is None


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_do():
    (hidden, head), teacher = heads(bias=False)
    frozen = Head(head.weight.detach())
    token_divergence(DIVERGENCES["forward_kl"], hidden, frozen, *teacher).sum().backward()
    assert frozen.weight.grad is None
    assert hidden.grad is not None


def test_half_precision_gives_single_precision_values_and_half_precision_gradients():
    student, teacher = heads(dtype=torch.bfloat16)
    found = token_divergence(DIVERGENCES["reverse_kl"], *student, *teacher, chunk_positions=2)
    assert found.dtype == torch.float32
    found.sum().backward()
    exact_student, exact_teacher = heads()
    exact = reverse_kl(naive_logprobs(*exact_student), naive_logprobs(*exact_teacher))
    exact.sum().backward()
    torch.testing.assert_close(found.double(), exact, rtol=0.05, atol=0.05)
    assert student[1].weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(
        student[1].weight.grad.double(), exact_student[1].weight.grad, rtol=0.1, atol=0.1
    )


def test_extreme_logits_stay_finite():
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    head = Head(torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True))
    teacher = -hidden.detach(), Head(torch.tensor([[1.0], [-1.0], [0.0]]))
    for name, hyperparameters in ROWS:
        found = token_divergence(DIVERGENCES[name], hidden, head, *teacher, **hyperparameters)
        assert torch.isfinite(found).all(), name
        for gradient in torch.autograd.grad(found.sum(), (hidden, head.weight)):
            assert torch.isfinite(gradient).all(), name


def test_without_gradient_nothing_is_kept():
    student, teacher = heads()
    with torch.no_grad():
        found = token_divergence(DIVERGENCES["forward_kl"], *student, *teacher)
    assert not found.requires_grad


def test_no_positions_give_no_numbers():
    (hidden, head), (teacher_hidden, teacher_head) = heads()
    found = token_divergence(
        DIVERGENCES["forward_kl"], hidden[:0], head, teacher_hidden[:0], teacher_head
    )
    assert found.shape == (0,)
    found.sum().backward()
    assert head.weight.grad.abs().sum() == 0


def test_vocabularies_of_two_sizes_are_refused():
    (hidden, head), (teacher_hidden, teacher_head) = heads(bias=False)
    larger = Head(torch.cat((teacher_head.weight, teacher_head.weight[:1])))
    with pytest.raises(ValueError, match="same vocabulary for student and teacher, found 7 and 8"):
        token_divergence(DIVERGENCES["forward_kl"], hidden, head, teacher_hidden, larger)


def test_positions_that_do_not_match_are_refused():
    student, (teacher_hidden, teacher_head) = heads()
    with pytest.raises(ValueError, match="same positions for student and teacher, found 5 and 4"):
        token_divergence(DIVERGENCES["forward_kl"], *student, teacher_hidden[:4], teacher_head)
