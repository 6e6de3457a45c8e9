"""How the report writes numbers."""

from __future__ import annotations

import pytest

from tasks.formatting import change, duration, shown, with_error
from tasks.headlines import headline_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.853515625, "0.854"),
        (0.9996, "1.00"),
        (13.29296875, "13.3"),
        (4000.0, "4,000"),
        (1234.5, "1,234"),
        (3.4141e-07, "3.41e-07"),
        (-0.00828, "-0.00828"),
        (0.0, "0"),
        (None, "not measured"),
        (float("nan"), "not finite"),
    ],
)
def test_numbers_have_three_significant_digits_and_counts_stay_whole(value, expected):
    assert shown(value) == expected


def test_an_error_has_two_digits_and_its_value_as_many_decimals():
    assert with_error(0.558984375, 0.0146754) == "0.559 ± 0.015"
    assert with_error(0.558984375, None) == "0.559"
    assert change(0.0166, 1.0022) == "0.02 → 1.00"
    assert [duration(s) for s in (5.907, 59.7, 3601.0, None)] == [
        "5.91 s",
        "1 min 00 s",
        "1 h 00 min",
        "not measured",
    ]


TRAINING = {"reward": 0.91, "kl": 3.2}
HELD_OUT = {"heldout_reward_before": 0.0166, "heldout_reward": 0.734}
INTERVAL = {"heldout_reward_low": 0.69, "heldout_reward_high": 0.778}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (TRAINING, "training reward 0.910 at KL 3.20"),
        (TRAINING | HELD_OUT, "held-out reward 0.017 → 0.734"),  # a single prompt has no interval
        (
            TRAINING | HELD_OUT | INTERVAL,
            "held-out reward 0.017 → 0.734 (95 % interval 0.690 to 0.778)",
        ),
        ({"other": 1.0, "win_rate_low": 0.5}, "other 1, win rate, lower bound 0.500"),
    ],
)
def test_ppo_is_told_by_its_held_out_reward_and_its_interval_if_there_is_one(metrics, expected):
    assert headline_of("ppo", metrics) == expected
