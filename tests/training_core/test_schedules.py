"""Learning-rate factors at steps worked out by hand."""

import pytest

from training_core.schedules import SCHEDULES, learning_rate_factor


def test_warm_up_rises_in_a_line_to_one():
    factor = learning_rate_factor("constant", warmup_steps=4, total_steps=10)
    assert [factor(s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_zero_at_the_end():
    factor = learning_rate_factor("linear", warmup_steps=2, total_steps=6)
    # steps 2…6 are 0, 1/4, 2/4, 3/4, 4/4 of the way
    assert [factor(s) for s in range(2, 7)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_cosine_falls_to_a_tenth():
    factor = learning_rate_factor("cosine", warmup_steps=1, total_steps=5)
    # half way: 0.1 + 0.9 / 2
    assert [factor(1), factor(3), factor(5)] == pytest.approx([1.0, 0.55, 0.1])


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_stays_between_zero_and_one_and_holds_its_end(name):
    factor = learning_rate_factor(name, warmup_steps=3, total_steps=20)
    factors = [factor(s) for s in range(30)]
    assert all(0 <= f <= 1 for f in factors)
    assert max(factors) == 1.0
    assert factors[20:] == [factors[20]] * 10


def test_a_warm_up_as_long_as_the_run_never_divides_by_zero():
    factor = learning_rate_factor("cosine", warmup_steps=5, total_steps=5)
    assert factor(4) == 1.0
    assert factor(5) == 1.0
