"""What the responses of an evaluation show: sources, lengths, refusals, noise of sampling."""

from __future__ import annotations

import json
import random

import pytest

from stages.runtime.store import Store
from tasks.gate import GateConfig, Verdict, judge
from tasks.gate.judged_responses import JudgedResponses, SourceResult, read_responses
from tasks.gate.refusals import looks_like_a_refusal, refusal_share
from tasks.refs import StageRef, ref_of
from tests.tasks.real_services import finish_stage
from training_core.errors import IntegrityError

GOOD = {
    "won_prompts": 160.0,
    "lost_prompts": 90.0,
    "judged_prompts": 256.0,
    "judged_fraction": 1.0,
    "reward_gain": 0.25,
}
QUIET = JudgedResponses(
    sources=(), length_ratio=1.1, refusals=0.02, opponent_refusals=0.01, gain_noise=None
)


def source(name: str, won: int, lost: int, tied: int = 0, gain: float = 0.1) -> SourceResult:
    return SourceResult(source=name, won=won, lost=lost, tied=tied, gain=gain)


def judged(gate: GateConfig | None = None, *, has_champion: bool = True, **fields) -> Verdict:
    responses = QUIET.model_copy(update=fields)
    return judge(GOOD, gate or GateConfig(), responses=responses, has_champion=has_champion)


def failed(verdict: Verdict) -> dict[str, object]:
    return {c.name: c.found for c in verdict.reasons if not c.passed}


# ------------------------------------------------------------------------- the verdict


def test_the_outcome_says_whether_the_evidence_is_missing_or_against_the_candidate():
    assert judge(GOOD, GateConfig()).outcome == "promote"
    # 130 to 120 with a gain: better on these prompts, and the interval includes 1/2
    unclear = GOOD | {"won_prompts": 130.0, "lost_prompts": 120.0}
    assert judge(unclear, GateConfig()).outcome == "hold"
    few = GOOD | {"won_prompts": 20.0, "lost_prompts": 4.0, "judged_prompts": 24.0}
    assert judge(few, GateConfig()).outcome == "hold"
    assert judge(GOOD, GateConfig(), dependent_judge="ppo.reward").outcome == "hold"
    # 90 wins and 160 losses: the upper bound is below 1/2
    worse = GOOD | {"won_prompts": 90.0, "lost_prompts": 160.0}
    assert judge(worse, GateConfig()).outcome == "reject"
    assert judge(unclear | {"reward_gain": -0.01}, GateConfig()).outcome == "reject"
    assert judge(GOOD | {"win_rate_over_sft": 0.4}, GateConfig()).outcome == "reject"
    limited = GateConfig(max_kl=5.0)
    assert judge(GOOD | {"kl_to_reference": 6.0}, limited).outcome == "reject"
    assert judge(GOOD, limited).outcome == "hold"  # it was not measured
    assert judge(GOOD | {"kl_to_reference": float("nan")}, limited).outcome == "hold"


def test_a_verdict_of_an_earlier_release_that_was_refused_is_read_as_held():
    old = '{"passed": false, "level": 0.0125, "reasons": [{"name": "n", "expected": "> 0",'
    old += ' "found": -1.0, "passed": false}]}'
    assert Verdict.model_validate_json(old).outcome == "hold"


# ------------------------------------------------------------------------- sources


def test_a_source_on_which_the_candidate_is_proven_worse_rejects_it():
    better, worse = source("chat", 155, 65), source("maths", 5, 31)
    verdict = judged(sources=(better, worse))
    assert verdict.outcome == "reject"
    assert failed(verdict) == {"source_regression": "maths: won 5, lost 31, tied 0"}
    assert judged(GateConfig(source_regression_rate=None), sources=(better, worse)).passed
    # one source is what the whole evaluation already says
    assert judged(sources=(worse,)).passed


def test_the_more_sources_the_more_evidence_is_needed_against_one():
    # P(4 or fewer wins of 17) = 2.45 %, and with two sources 0.9 * 5 % / 2 = 2.25 % are needed
    few = (source("a", 4, 13), source("b", 60, 20))
    many = (source("a", 3, 14), *(source(f"b{i}", 8, 4) for i in range(19)))
    assert judged(sources=few).passed
    # P(3 or fewer of 17) = 0.64 %, and with twenty sources 0.9 * 5 % / 20 = 0.225 % are needed
    assert failed(judged(sources=(many[0], few[1]))).keys() == {"source_regression"}
    assert judged(sources=many).passed


def test_a_policy_that_is_equal_on_every_source_is_rarely_turned_down_for_one():
    rng = random.Random(7)
    turned_down = 0
    for _ in range(400):
        wins = [sum(rng.random() < 0.5 for _ in range(40)) for _ in range(8)]
        sources = tuple(source(f"s{i}", w, 40 - w) for i, w in enumerate(wins))
        turned_down += not judged(sources=sources).passed
    # at most 5 %, i.e. 20 of 400; the exact test of 40 prompts stays well below it
    assert turned_down <= 20


def test_a_limit_on_the_loss_of_each_source_names_the_worst():
    gate = GateConfig(max_source_loss=0.05)
    sources = (source("chat", 9, 3), source("maths", 4, 5, gain=-0.2))
    assert failed(judged(gate, sources=sources)) == {"worst_source_gain": "-0.2 on maths"}
    assert judged(GateConfig(max_source_loss=0.2), sources=sources).passed


# ------------------------------------------------------------------------- drift and noise


@pytest.mark.parametrize(("ratio", "outcome"), [(2.1, "reject"), (0.4, "reject"), (None, "hold")])
def test_lengths_that_drift_from_the_champions_are_no_improvement(ratio, outcome):
    verdict = judged(length_ratio=ratio)
    assert verdict.outcome == outcome
    assert failed(verdict) == {"length_change": ratio}
    assert judged(GateConfig(max_length_change=None), length_ratio=ratio).passed
    assert judged(length_ratio=ratio, has_champion=False).passed


def test_more_refusals_than_the_champion_has_reject_the_candidate():
    verdict = judged(refusals=0.2, opponent_refusals=0.05)
    assert verdict.outcome == "reject"
    assert failed(verdict) == {"refusals": 0.2}
    assert judged(refusals=0.14, opponent_refusals=0.05).passed
    assert judged(refusals=0.2, opponent_refusals=0.05, has_champion=False).passed


def test_a_gain_within_the_noise_of_sampling_is_held():
    assert judged(gain_noise=0.12).passed  # 0.25 is more than twice as much
    verdict = judged(gain_noise=0.13)
    assert verdict.outcome == "hold"
    assert failed(verdict) == {"gain_over_noise": 0.25}


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, I cannot provide this.",
        "As an AI language model, I do not have opinions.",
        "I must decline.",
        "Unfortunately I am not able to do so.",
    ],
)
def test_a_refusal_is_found_by_its_phrases(text):
    assert looks_like_a_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "I can help with that.",
        "He said sorry and left.",
        "x" * 300 + " I'm sorry, I cannot help",  # only the beginning counts
        "",
    ],
)
def test_other_responses_are_none(text):
    assert not looks_like_a_refusal(text)


def test_the_share_of_no_response_is_0():
    assert refusal_share([]) == 0.0
    assert refusal_share(["I apologize.", "Two coffees."]) == 0.5


# ------------------------------------------------------------------------- the files


@pytest.fixture
def evaluate(tmp_path):
    """Finish an evaluation by hand: `evaluate(rows)`, with (policy, prompt, response, reward)."""
    store = Store(tmp_path / "store")
    names = ("policy", "prompt_id", "response", "reward")

    def finish(rows) -> tuple[Store, StageRef]:
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        tokens = {"policy": {"response_tokens": 30.0}, "baseline": {"response_tokens": 20.0}}
        files = {"summary.json": json.dumps(tokens), "samples.jsonl": "".join(lines)}
        made = finish_stage(
            store, "evaluation", kind="evaluation", files=files, cost={"seconds": 1.0}
        )
        return store, ref_of(made, "evaluation", is_reused=True)

    return finish


def test_the_files_of_an_evaluation_tell_sources_lengths_refusals_and_noise(evaluate):
    rows = [
        ("policy", "1", "yes", 1.0), ("policy", "1", "yes", 0.0),
        ("baseline", "1", "no", 0.25), ("baseline", "1", "I'm sorry", 0.25),
        ("policy", "2", "four", 0.0), ("policy", "2", "five", 0.0),
        ("baseline", "2", "four", 1.0), ("baseline", "2", "four", 1.0),
        ("policy", "3", "unjudged by the other", 1.0),
        ("someone", "1", "of no interest", 9.0),
    ]  # fmt: skip
    found = read_responses(*evaluate(rows), {"1": "chat", "2": "maths", "3": "maths"})
    # prompt 1: of the pairs (1, .25) twice and (0, .25) twice as many are won as lost
    chat = SourceResult(source="chat", won=0, lost=0, tied=1, gain=0.25)
    maths = SourceResult(source="maths", won=0, lost=1, tied=0, gain=-1.0)
    assert found.sources == (chat, maths)
    assert found.length_ratio == 1.5
    assert (found.refusals, found.opponent_refusals) == (0.0, 0.25)
    # variance of (1, 0) is 1/2, of all others 0: mean over prompts of s²/k is 1/8, over 2 prompts
    assert found.gain_noise == pytest.approx((1 / 8 / 2) ** 0.5)


def test_with_one_response_to_each_prompt_the_noise_is_not_known(evaluate):
    rows = [("policy", "1", "yes", 1.0), ("baseline", "1", "no", 0.25)]
    assert read_responses(*evaluate(rows), {"1": "chat"}).gain_noise is None


def test_a_prompt_that_the_data_no_longer_has_and_files_that_are_gone_are_errors(evaluate):
    rows = [("policy", "2", "yes", 1.0), ("baseline", "2", "no", 0.25)]
    store, ref = evaluate(rows)
    with pytest.raises(IntegrityError, match="expected prompts with the numbers 1 to 1, found 2"):
        read_responses(store, ref, {"1": "chat"})
    with pytest.raises(IntegrityError, match="expected the files of the step 'evaluation'"):
        read_responses(store, ref.model_copy(update={"digest": "0" * 64}), {"1": "chat"})
