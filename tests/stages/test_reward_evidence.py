"""The numbers by which a reward model is admitted, calculated by hand."""

from __future__ import annotations

import pytest
import torch

from stages.admission.evidence import _against_rule, calibration
from stages.admission.null_responses import spoiled
from stages.admission.null_rules import preferences_of
from stages.batches.encoding import encode_pairs
from stages.datasets import Preference
from training_core.types import Example

PROMPT = ({"role": "user", "content": "one tea please"},)


def test_calibration_compares_stated_with_measured_accuracy():
    # ln 3 states 3/4, and -ln 3 states 3/4 for the wrong side. Three of four are right: exact.
    margin = torch.log(torch.tensor(3.0))
    exact = calibration(torch.stack([margin, margin, margin, -margin]))
    assert exact["heldout_brier"] == pytest.approx((3 * 0.25**2 + 0.75**2) / 4)
    # in bins of one pair each: |0.75 - 1| three times, |0.75 - 0| once
    assert exact["heldout_calibration_error"] == pytest.approx((3 * 0.25 + 0.75) / 4)
    sure = calibration(torch.full((40,), 50.0))
    assert sure["heldout_calibration_error"] == pytest.approx(0.0, abs=1e-6)
    wrong = calibration(torch.full((40,), -50.0))
    assert wrong["heldout_calibration_error"] == pytest.approx(1.0, abs=1e-6)


def test_spoiled_responses_keep_the_prompt_and_the_end_token():
    example = Example((1, 2, 10, 11, 12, 13, 9), (0, 0, 1, 1, 1, 1, 1))
    ids = {
        name: spoiled(name, example, end=9, max_tokens=99).input_ids
        for name in ("empty", "repeated", "truncated")
    }
    assert ids["empty"] == (1, 2, 9)
    assert ids["truncated"] == (1, 2, 10, 11, 9)
    assert ids["repeated"] == (1, 2, 10, 11, 12, 13, 10, 11, 12, 13, 9)
    cut = spoiled("repeated", example, end=9, max_tokens=8)
    assert cut.input_ids == (1, 2, 10, 11, 12, 13, 10, 9)
    assert cut.loss_mask == (0, 0, 1, 1, 1, 1, 1, 1)


def pairs_of(tokenizer, *texts):
    rows = [Preference(PROMPT, chosen, rejected) for chosen, rejected in texts]
    return encode_pairs(tokenizer, rows, max_tokens=99)


def test_the_rule_of_length_learns_its_direction_from_the_training_pairs(tokenizer):
    heldout = pairs_of(tokenizer, ("two tea and one cake", "two tea"), ("tea", "one tea"))
    longer = pairs_of(tokenizer, ("one tea and one cake", "tea"))
    shorter = pairs_of(tokenizer, ("tea", "one tea and one cake"))
    assert preferences_of("length", tokenizer, longer, heldout).tolist() == [1.0, -1.0]
    assert preferences_of("length", tokenizer, shorter, heldout).tolist() == [-1.0, 1.0]
    assert preferences_of("format", tokenizer, longer, heldout).tolist() == [0.0, 0.0]


def test_a_model_that_follows_the_rule_does_not_beat_it():
    rule = torch.tensor([1.0] * 60 + [-1.0] * 40)
    same = _against_rule("length", rule, rule > 0)
    assert same == {"rule_length_accuracy": 0.6, "over_rule_length_low": 0.0}
    better = _against_rule("length", rule, torch.ones(100, dtype=torch.bool))
    assert better["over_rule_length_low"] > 0.9  # right on all 40 where the rule is wrong
    # a rule that never decides guesses: 54 of 100 right is no more than chance
    undecided = _against_rule("format", torch.zeros(100), torch.arange(100) < 54)
    assert undecided["rule_format_accuracy"] == 0.5
    assert undecided["over_rule_format_low"] < 0.5
