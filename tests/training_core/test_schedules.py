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


def test_a_floor_is_where_a_schedule_ends():
    line = learning_rate_factor("linear", warmup_steps=2, total_steps=6, min_ratio=0.2)
    # 0.2 + 0.8 * (1 - p) at p = 0, 1/2, 1
    assert [line(2), line(4), line(6)] == pytest.approx([1.0, 0.6, 0.2])
    half = learning_rate_factor("cosine", warmup_steps=1, total_steps=5, min_ratio=0.0)
    assert [half(1), half(3), half(5)] == pytest.approx([1.0, 0.5, 0.0], abs=1e-12)


def test_wsd_stays_and_then_falls_in_a_line():
    # 20 steps, 4 of warm-up; the last 20 * 0.2 = 4 steps fall: 16 -> 1, 17 -> 3/4, ..., 20 -> 0
    factor = learning_rate_factor("wsd", warmup_steps=4, total_steps=20, decay_fraction=0.2)
    assert [factor(s) for s in (3, 4, 10, 16)] == [1.0] * 4
    assert [factor(s) for s in (17, 18, 19, 20)] == pytest.approx([0.75, 0.5, 0.25, 0.0])
    floored = learning_rate_factor(
        "wsd", warmup_steps=4, total_steps=20, decay_fraction=0.2, min_ratio=0.5
    )
    assert [floored(s) for s in (16, 18, 20)] == pytest.approx([1.0, 0.75, 0.5])


def test_wsd_that_only_falls_is_linear():
    wsd = learning_rate_factor("wsd", warmup_steps=2, total_steps=10, decay_fraction=1.0)
    linear = learning_rate_factor("linear", warmup_steps=2, total_steps=10)
    assert [wsd(s) for s in range(12)] == pytest.approx([linear(s) for s in range(12)])


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
