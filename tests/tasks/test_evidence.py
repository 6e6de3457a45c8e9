from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from stages.runtime.stage_key import semantic_part
from tasks.gate import GateConfig, Verdict, as_list, as_table, judge

GOOD = {
    "won_prompts": 160.0,
    "lost_prompts": 90.0,
    "judged_prompts": 256.0,
    "judged_fraction": 1.0,
    "reward_gain": 0.25,
    "win_rate_over_sft": 0.7,
    "kl_to_reference": 4.0,
    "response_tokens": 40.0,
    "finished_fraction": 0.98,
}
DECIDED = ("won_prompts", "lost_prompts", "judged_prompts", "judged_fraction", "reward_gain")
ENOUGH = {name: GOOD[name] for name in DECIDED}
STRICT = GateConfig(
    min_reward_gain=0.2, max_kl=5.0, max_response_tokens=48, min_finished_fraction=0.95
)


def failed_checks(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.reasons if not check.passed]


def test_a_candidate_that_wins_beyond_chance_passes_the_default_gate():
    verdict = judge(ENOUGH, GateConfig())

    assert verdict.passed
    assert {check.name: check.expected for check in verdict.reasons} == {
        "independent_judge": "a reward that no step optimised",
        "judged_prompts": ">= 50",
        "judged_fraction": ">= 0.9",
        "win_rate_low": "> 0.5",
        "reward_gain": "> 0",
    }


def test_a_candidate_that_only_ties_is_refused():
    ties = ENOUGH | {"won_prompts": 0.0, "lost_prompts": 0.0, "reward_gain": 0.0}
    assert failed_checks(judge(ties, GateConfig())) == ["win_rate_low", "reward_gain"]


def test_every_threshold_that_is_set_is_checked():
    verdict = judge(GOOD, STRICT)

    assert verdict.passed
    found = {c.name: c.found for c in verdict.reasons}
    # wins and half of the ties: 160 / 256 + 6 / 512 = 0.637; the bound is 2.4 errors of 0.03 lower
    assert found.pop("win_rate_low") == pytest.approx(0.563, abs=0.005)
    assert found == {
        "independent_judge": "yes",
        "judged_prompts": 256.0,
        "judged_fraction": 1.0,
        "reward_gain": 0.25,
        "win_rate_over_sft": 0.7,
        "kl_to_reference": 4.0,
        "response_tokens": 40.0,
        "finished_fraction": 0.98,
    }


@pytest.mark.parametrize(
    ("metric", "value", "failed"),
    [
        ("won_prompts", 110.0, ["win_rate_low"]),
        ("won_prompts", math.nan, ["win_rate_low"]),
        ("judged_prompts", 250.0 - 1, ["win_rate_low"]),  # fewer than were won and lost
        ("judged_fraction", 0.89, ["judged_fraction"]),
        ("reward_gain", 0.2, ["reward_gain"]),
        ("win_rate_over_sft", 0.499, ["win_rate_over_sft"]),
        ("kl_to_reference", 5.1, ["kl_to_reference"]),
        ("response_tokens", 49.0, ["response_tokens"]),
        ("finished_fraction", 0.9, ["finished_fraction"]),
        ("kl_to_reference", math.nan, ["kl_to_reference"]),
    ],
)
def test_one_bad_number_refuses_the_candidate_and_is_named(metric, value, failed):
    assert failed_checks(judge(GOOD | {metric: value}, STRICT)) == failed


@pytest.mark.parametrize(
    ("metric", "unknown"),
    [
        ("won_prompts", ["win_rate_low"]),
        ("judged_prompts", ["judged_prompts", "win_rate_low"]),
        *((name, [name]) for name in ("judged_fraction", "reward_gain", "kl_to_reference")),
    ],
)
def test_a_number_that_was_not_measured_refuses_the_candidate(metric, unknown):
    known = {name: value for name, value in GOOD.items() if name != metric}
    # The bound in the metrics is of the first attempt and of another level.
    verdict = judge(known | {"win_rate_low": 0.9}, STRICT)

    assert failed_checks(verdict) == unknown
    assert [check.found for check in verdict.reasons if not check.passed] == [None] * len(unknown)


def test_four_wins_of_four_prompts_prove_nothing():
    few = ENOUGH | {"won_prompts": 4.0, "lost_prompts": 0.0, "judged_prompts": 4.0}
    few |= {"judged_fraction": 4 / 254}
    expected = ["judged_prompts", "judged_fraction", "win_rate_low"]
    assert failed_checks(judge(few, GateConfig())) == expected


def test_many_small_wins_do_not_outweigh_large_losses():
    # 154 wins by 0.001 and 102 losses by 1.0: (0.154 - 102) / 256
    found = ENOUGH | {"won_prompts": 160.0, "lost_prompts": 96.0, "reward_gain": -0.398}
    assert failed_checks(judge(found, GateConfig())) == ["reward_gain"]


def test_each_further_attempt_needs_more_evidence():
    levels = [GateConfig().level_of(attempt) for attempt in range(1, 2001)]
    assert levels[:3] == pytest.approx([0.0125, 0.025 / 6, 0.025 / 12])
    assert sum(levels) == pytest.approx(0.025 * 2000 / 2001)  # 1/(1*2) + 1/(2*3) + ... < 1

    found = ENOUGH | {"won_prompts": 150.0, "lost_prompts": 106.0}
    first, second, third = (judge(found, GateConfig(), attempt=k) for k in (1, 2, 3))
    # P(150 or more of 256) = 0.35 %; 0.9 of the three levels is 1.12 %, 0.375 % and 0.188 %
    assert (first.passed, second.passed, third.passed) == (True, True, False)
    assert failed_checks(third) == ["win_rate_low"]


def test_a_reward_that_was_optimised_decides_nothing():
    verdict = judge(ENOUGH, GateConfig(), dependent_judge="the reward model of ppo.reward")

    assert failed_checks(verdict) == ["independent_judge"]
    assert verdict.failed() == (
        "independent_judge a reward that no step optimised, found the reward model of ppo.reward"
    )


def test_the_table_says_what_was_expected_and_what_was_found():
    ties = ENOUGH | {"won_prompts": 0.0, "lost_prompts": 0.0}
    table = as_table(judge(ties, GateConfig(max_kl=5.0), attempt=2))

    # 0 of 256 prompts decided: (1 - u)^256 = 0.05 * 0.025 / 6, u = 0.0326, 0.5 - u / 2 = 0.4837
    assert table.splitlines() == [
        "**Hold**: 2 of 6 checks failed, none against the candidate. Attempt 2 against this "
        "opponent on these prompts: the bound of the win rate has the level 0.0042.",
        "",
        "| check | expected | found | passed |",
        "|---|---|---|---|",
        "| independent_judge | a reward that no step optimised | yes | yes |",
        "| judged_prompts | >= 50 | 256 | yes |",
        "| judged_fraction | >= 0.9 | 1 | yes |",
        "| win_rate_low | > 0.5 | 0.4837 | **no** |",
        "| reward_gain | > 0 | 0.25 | yes |",
        "| kl_to_reference | <= 5 | not measured | **no** |",
    ]


def test_the_list_says_the_same_in_a_narrow_place():
    verdict = judge(ENOUGH, GateConfig(max_kl=5.0))
    summary, blank, *rows = as_list(verdict).splitlines()

    assert (summary, blank) == tuple(as_table(verdict).splitlines()[:2])
    assert "- judged_fraction: 1, expected >= 0.9" in rows
    assert "- kl_to_reference: not measured, expected <= 5; passed: **no**" in rows
    assert len(rows) == len(verdict.reasons)


def test_a_verdict_survives_json():
    verdict = judge(GOOD, STRICT)

    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_a_gate_changes_no_stage_key():
    assert semantic_part(STRICT) == {}


def test_a_threshold_outside_its_range_is_refused():
    with pytest.raises(ValidationError):
        GateConfig(min_win_rate_low=51)
