"""Win rates and means worked out by hand."""

import math

import pytest

from stages.sampling.judging import Judged
from stages.sampling.win_rate import compare, describe
from training_core.errors import DataError
from training_core.types import Prompt, Rollout, ScoredRollout


def scored(*rewards_by_prompt, is_finished=True, tokens=2):
    """One list of rewards per prompt."""
    return [
        ScoredRollout(
            Rollout(
                Prompt(str(i), (), "", ()), (5,) * tokens, (-1.0,) * tokens, "", is_finished, 0
            ),
            float(reward),
        )
        for i, rewards in enumerate(rewards_by_prompt)
        for reward in rewards
    ]


def test_a_win_counts_one_and_a_tie_half():
    ours, theirs = scored([1], [2], [3], [0]), scored([0], [2], [4], [0])
    # win, tie, loss, tie: (1 + 0.5 + 0 + 0.5) / 4
    assert compare(ours, theirs)["win_rate"] == pytest.approx(0.5)


def test_several_responses_are_compared_all_with_all_and_prompts_weigh_the_same():
    ours, theirs = scored([1, 3], [0], [4, 0]), scored([2, 0], [1], [2, 2])
    # prompt 0: 1>2 no, 1>0 yes, 3>2 yes, 3>0 yes: 3 of 4 pairs, won; prompt 1: lost;
    # prompt 2: 2 of 4 pairs, a tie
    found = compare(ours, theirs)
    assert found["win_rate"] == pytest.approx(0.5)
    assert (found["won_prompts"], found["lost_prompts"], found["judged_prompts"]) == (1, 1, 3)
    # mean rewards 2 - 1, 0 - 1 and 2 - 2, so (1 - 1 + 0) / 3
    assert found["reward_gain"] == pytest.approx(0.0)


def test_only_prompts_that_both_answered_count():
    theirs = scored([0], [5])[:1]
    found = compare(scored([1], [0]), theirs)
    assert (found["win_rate"], found["judged_prompts"], found["reward_gain"]) == (1.0, 1.0, 1.0)


def test_policies_without_a_common_prompt_are_refused():
    with pytest.raises(DataError, match="found 1 prompts of one, 1 of the other and none of both"):
        compare(scored([1]), scored([0], [5])[1:])


def test_the_two_sides_add_up_to_one():
    ours, theirs = scored([1, 3], [0], [2]), scored([2, 0], [1], [2])
    total = compare(ours, theirs)["win_rate"] + compare(theirs, ours)["win_rate"]
    assert total == pytest.approx(1.0)


def test_a_policy_against_itself_is_a_draw_and_three_ties_prove_little():
    rows = scored([1], [2], [3])
    found = compare(rows, rows)
    assert found["win_rate"] == 0.5
    # No upper bound u of the share of decided prompts excludes 0 of 3: (1 - u)^3 = 0.0025 / 2,
    # u = 0.892; the win rate is within half of that around 1/2.
    assert found["win_rate_low"] == pytest.approx(0.5 - 0.892 / 2, abs=1e-3)
    assert found["win_rate_high"] == pytest.approx(0.5 + 0.892 / 2, abs=1e-3)


def test_three_wins_of_three_are_not_certainty():
    found = compare(scored([1], [2], [3]), scored([0], [0], [0]))
    assert (found["win_rate"], found["win_rate_high"]) == (1.0, 1.0)
    # q^3 = 0.9 * 0.025, so q = 0.282; below 1/2, where the share of decided prompts counts as 1
    assert found["win_rate_low"] == pytest.approx(0.282, abs=1e-3)


def test_the_interval_is_about_two_deviations_around_the_rate_and_the_same_every_time():
    ours = scored(*([[1]] * 60 + [[0]] * 40))
    theirs = scored(*([[0]] * 60 + [[1]] * 40))
    found = compare(ours, theirs)
    margin = 1.96 * math.sqrt(0.6 * 0.4 / 100)  # 0.096
    assert found["win_rate"] == pytest.approx(0.6)
    assert found["win_rate_low"] == pytest.approx(0.6 - margin, abs=0.015)
    assert found["win_rate_high"] == pytest.approx(0.6 + margin, abs=0.015)
    assert compare(ours, theirs) == found


def test_the_description_of_four_responses():
    rows = scored([1], [2], [3], [6]) + scored([3], is_finished=False, tokens=7)
    found = describe(Judged(rows, kl_to_baseline=0.25))
    assert found["responses"] == 5
    assert found["mean_reward"] == pytest.approx(3.0)
    # squares 4 + 1 + 0 + 9 + 0 = 14; sqrt(14 / 4) / sqrt(5) = 0.83666
    assert found["reward_stderr"] == pytest.approx(0.83666, abs=1e-5)
    assert found["response_tokens"] == pytest.approx((4 * 2 + 7) / 5)
    assert found["finished_fraction"] == pytest.approx(0.8)
    assert found["kl_to_baseline"] == 0.25
