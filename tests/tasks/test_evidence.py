from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from stages.runtime.stage_key import semantic_part
from tasks.gate import GateConfig, Verdict, as_table, judge

GOOD = {
    "win_rate": 0.62,
    "win_rate_low": 0.53,
    "kl_to_reference": 4.0,
    "mean_reward": 1.5,
    "baseline_mean_reward": 1.25,
    "response_tokens": 40.0,
    "finished_fraction": 0.98,
}
STRICT = GateConfig(
    min_reward_gain=0.2, max_kl=5.0, max_response_tokens=48, min_finished_fraction=0.95
)


def test_a_candidate_that_wins_beyond_chance_passes_the_default_gate():
    verdict = judge({"win_rate_low": 0.53}, GateConfig())

    assert verdict.passed
    assert [check.name for check in verdict.reasons] == ["win_rate_low"]


def test_a_candidate_that_only_ties_is_refused():
    assert not judge({"win_rate": 0.5, "win_rate_low": 0.5}, GateConfig()).passed


def test_every_threshold_that_is_set_is_checked():
    verdict = judge(GOOD, STRICT)

    assert verdict.passed
    # 1.5 - 1.25 = 0.25, which is at least 0.2
    assert {c.name: c.found for c in verdict.reasons} == {
        "win_rate_low": 0.53,
        "reward_gain": 0.25,
        "kl_to_reference": 4.0,
        "response_tokens": 40.0,
        "finished_fraction": 0.98,
    }


@pytest.mark.parametrize(
    ("metric", "value", "failed"),
    [
        ("win_rate_low", 0.49, "win_rate_low"),
        ("kl_to_reference", 5.1, "kl_to_reference"),
        ("mean_reward", 1.4, "reward_gain"),  # 1.4 - 1.25 = 0.15 < 0.2
        ("response_tokens", 49.0, "response_tokens"),
        ("finished_fraction", 0.9, "finished_fraction"),
        ("kl_to_reference", math.nan, "kl_to_reference"),
    ],
)
def test_one_bad_number_refuses_the_candidate_and_is_named(metric, value, failed):
    verdict = judge(GOOD | {metric: value}, STRICT)

    assert not verdict.passed
    assert [check.name for check in verdict.reasons if not check.passed] == [failed]


@pytest.mark.parametrize("metric", sorted(GOOD.keys() - {"win_rate"}))
def test_a_number_that_was_not_measured_refuses_the_candidate(metric):
    verdict = judge({name: value for name, value in GOOD.items() if name != metric}, STRICT)

    assert [check.found for check in verdict.reasons if not check.passed] == [None]


def test_the_table_says_what_was_expected_and_what_was_found():
    table = as_table(judge({"win_rate_low": 0.41}, GateConfig(max_kl=5.0)))

    assert table.splitlines() == [
        "**Refused**: 2 of 2 failed.",
        "",
        "| check | expected | found | passed |",
        "|---|---|---|---|",
        "| win_rate_low | > 0.5 | 0.41 | **no** |",
        "| kl_to_reference | <= 5 | not measured | **no** |",
    ]


def test_a_verdict_survives_json():
    verdict = judge(GOOD, STRICT)

    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_a_gate_changes_no_stage_key():
    assert semantic_part(STRICT) == {}


def test_a_threshold_outside_its_range_is_refused():
    with pytest.raises(ValidationError):
        GateConfig(min_win_rate_low=51)
