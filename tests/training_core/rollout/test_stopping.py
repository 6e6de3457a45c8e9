"""Where a response ends, and what its text is then: one rule for all engines."""

import pytest

from training_core.errors import ConfigError
from training_core.rollout.sampling import Sampling
from training_core.rollout.stopping import StopRule


def rollout_of(tokenizer, prompt, words, **stops):
    rule = StopRule(tokenizer, Sampling(9, **stops))
    ids = tokenizer.convert_tokens_to_ids(words)
    return rule.rollout(prompt, ids, [-float(i) for i in range(len(ids))], 3)


def test_a_response_ends_with_the_token_that_completes_a_stop_string(tokenizer, cafe_prompts):
    words = ["one", "tea", "please", "tea"]
    rollout = rollout_of(tokenizer, cafe_prompts[0], words, stop=("tea pl", "water"))
    assert rollout.text == "one "
    assert rollout.response_ids == tuple(tokenizer.convert_tokens_to_ids(words[:3]))
    assert rollout.logprobs == (0.0, -1.0, -2.0)
    assert rollout.is_finished
    assert rollout.policy_version == 3


def test_without_its_stop_string_a_response_is_whole(tokenizer, cafe_prompts):
    rollout = rollout_of(tokenizer, cafe_prompts[0], ["one", "tea"], stop=("water",))
    assert rollout.text == "one tea"
    assert not rollout.is_finished


def test_a_stop_token_ends_a_response_and_is_not_in_its_text(tokenizer, cafe_prompts):
    rollout = rollout_of(tokenizer, cafe_prompts[0], ["one", "tea", "one"], stop_tokens=("tea",))
    assert rollout.text == "one"
    assert len(rollout.response_ids) == 2
    assert rollout.is_finished


def test_the_end_token_still_ends_it(tokenizer, cafe_prompts):
    words = ["one", tokenizer.eos_token, "tea"]
    rollout = rollout_of(tokenizer, cafe_prompts[0], words, stop_tokens=("tea",))
    assert rollout.text == "one"
    assert rollout.response_ids[-1] == tokenizer.eos_token_id
    assert rollout.is_finished


def test_a_far_stop_string_is_found_through_the_window_of_last_tokens(tokenizer, cafe_prompts):
    words = ["tea"] * 30 + ["one", "please"] + ["tea"] * 30
    rollout = rollout_of(tokenizer, cafe_prompts[0], words, stop=("one please",))
    assert len(rollout.response_ids) == 32


def test_a_stop_token_must_be_in_the_vocabulary(tokenizer):
    with pytest.raises(ConfigError, match=r"stop_tokens has \['no such'\]"):
        StopRule(tokenizer, Sampling(9, stop_tokens=("tea", "no such")))
