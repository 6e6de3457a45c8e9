"""From rows to tokens: dropped where too long, cut only where texts are, counted in the log."""

import logging

import pytest

from stages.batches.encoding import (
    encode_demonstrations,
    encode_pairs,
    encode_solutions,
    encode_texts,
    encode_unpaired,
)
from stages.datasets import Demonstration, Preference, Solution, UnpairedResponse
from training_core.data.chat import encode_prompts, encode_responses
from training_core.data.documents import windows
from training_core.errors import DataError
from training_core.types import Example

TEA = ({"role": "user", "content": "we take two tea please"},)
PIE = ({"role": "user", "content": "please bring us one pie and two tea"},)
HERE = "here are two tea ."
TALK = (*TEA, {"role": "assistant", "content": HERE}, *PIE)


def words(tokenizer, example, *, trained):
    ids = [i for i, m in zip(example.input_ids, example.loss_mask, strict=True) if m == trained]
    return tokenizer.decode(ids)


def one(tokenizer, prompt, response, *, is_finished=True):
    prompts = encode_prompts(tokenizer, ["1"], [prompt])
    return encode_responses(
        tokenizer, prompts, [response], max_tokens=99, is_finished=[is_finished]
    )[0]


# ------------------------------------------- demonstrations


def test_a_demonstration_is_what_a_rollout_of_it_would_be(tokenizer):
    rows = [Demonstration(TEA, HERE), Demonstration(PIE, HERE, is_finished=False)]
    assert encode_demonstrations(tokenizer, rows, max_tokens=99) == [
        one(tokenizer, TEA, HERE),
        one(tokenizer, PIE, HERE, is_finished=False),
    ]


def test_every_turn_is_trained_unless_the_last_one_is_asked_for(tokenizer):
    rows = [Demonstration(TALK, "one tea ."), Demonstration(TEA, HERE)]
    every = encode_demonstrations(tokenizer, rows, max_tokens=99)
    last = encode_demonstrations(tokenizer, rows, max_tokens=99, train_on="last_turn")
    assert words(tokenizer, every[0], trained=1) == f"{HERE} </s> one tea . </s>"
    assert words(tokenizer, last[0], trained=1) == "one tea . </s>"
    assert every[0].input_ids == last[0].input_ids
    assert every[1] == last[1]


def test_rows_over_the_limit_are_dropped_and_counted(tokenizer, caplog):
    rows = [Demonstration(TEA, HERE), Demonstration(PIE, HERE), Demonstration(TALK, HERE)]
    # <s> <user> + 5 words + <assistant> = 8, + 5 words + </s> = 14; PIE has 8 words: 17
    with caplog.at_level(logging.WARNING):
        kept = encode_demonstrations(tokenizer, rows, max_tokens=14)
    assert [len(e) for e in kept] == [14]
    assert "2 of 3 rows are longer than max_tokens=14 and were dropped" in caplog.text


def test_conditional_sft_shows_each_prompt_its_reward(tokenizer):
    rows = [Demonstration(TALK, HERE, reward=1.0), Demonstration(TEA, HERE, reward=0.0)]
    found = encode_demonstrations(tokenizer, rows, max_tokens=99, reward_suffix=" two {reward:.0f}")
    plain = encode_demonstrations(tokenizer, rows, max_tokens=99)
    # WordLevel: "two" is a word, "1" and "0" are unknown ones
    for example, without in zip(found, plain, strict=True):
        assert len(example) == len(without) + 2
        assert words(tokenizer, example, trained=1) == words(tokenizer, without, trained=1)
        assert "tea please two <unk>" in words(tokenizer, example, trained=0) or (
            "two tea two <unk>" in words(tokenizer, example, trained=0)
        )


def test_conditional_sft_without_a_reward_names_the_row(tokenizer):
    rows = [Demonstration(TEA, HERE, reward=1.0), Demonstration(TEA, HERE)]
    with pytest.raises(DataError, match="prompt 2: conditional SFT needs a reward with every row"):
        encode_demonstrations(tokenizer, rows, max_tokens=99, reward_suffix=" {reward}")


# ------------------------------------------- texts


def test_a_text_is_trained_whole_with_its_end_and_without_its_beginning(tokenizer):
    (found,) = encode_texts(tokenizer, [HERE], max_tokens=99)
    assert tokenizer.decode(found.input_ids) == f"<s> {HERE} </s>"
    assert found.loss_mask == (0, 1, 1, 1, 1, 1, 1)
    (open_ended,) = encode_texts(tokenizer, [HERE], max_tokens=99, add_eos=False)
    assert open_ended.input_ids == found.input_ids[:-1]


@pytest.mark.parametrize("size", range(2, 12))
@pytest.mark.parametrize("limit", [2, 3, 4, 5, 99])
def test_windows_train_every_token_but_the_first_exactly_once(size, limit):
    ids = list(range(size))
    found = list(windows(ids, limit))
    trained = [i for e in found for i, m in zip(e.input_ids, e.loss_mask, strict=True) if m]
    assert trained == ids[1:]
    assert all(2 <= len(e) <= limit for e in found)
    assert [e.input_ids[0] for e in found[1:]] == [e.input_ids[-1] for e in found[:-1]]


def test_a_long_text_is_cut_and_never_dropped(tokenizer):
    # <s> + 10 words + </s> = 12 tokens: 5, then 1 of context and 4, then 1 and 3
    found = encode_texts(tokenizer, [f"{HERE} {HERE}"], max_tokens=5)
    assert [len(e) for e in found] == [5, 5, 4]
    assert [e.loss_mask[0] for e in found] == [0, 0, 0]


def test_a_text_without_tokens_is_an_error(tokenizer):
    with pytest.raises(DataError, match="text 2: ' ' has no tokens"):
        encode_texts(tokenizer, [HERE, " "], max_tokens=9)


# ------------------------------------------- pairs and ratings


def test_a_pair_keeps_its_margin_and_trains_no_earlier_turn(tokenizer):
    rows = [Preference(TALK, HERE, "one pie .", rejected_finished=False, margin=0.5)]
    (pair,) = encode_pairs(tokenizer, rows, max_tokens=99)
    assert pair.margin == 0.5
    assert pair.chosen == one(tokenizer, TALK, HERE)
    assert pair.rejected == one(tokenizer, TALK, "one pie .", is_finished=False)


def test_a_pair_is_dropped_if_one_side_is_too_long(tokenizer, caplog):
    rows = [Preference(TEA, HERE, "one"), Preference(TEA, "one", "two")]
    with caplog.at_level(logging.WARNING):
        assert len(encode_pairs(tokenizer, rows, max_tokens=13)) == 1  # the first has 14
    assert "1 of 2 rows" in caplog.text


def test_a_rating_is_a_response_and_its_verdict(tokenizer):
    rows = [
        UnpairedResponse(TEA, HERE, False),
        UnpairedResponse(TEA, HERE, True, is_finished=False),
    ]
    found = encode_unpaired(tokenizer, rows, max_tokens=99)
    assert [r.is_desirable for r in found] == [False, True]
    assert found[0].example == one(tokenizer, TEA, HERE)
    assert found[1].example == one(tokenizer, TEA, HERE, is_finished=False)
    # 8 tokens of prompt and 5 of response; only the finished one also has an end token
    assert encode_unpaired(tokenizer, rows, max_tokens=13) == found[1:]
    with pytest.raises(DataError, match=r"each of the \d rows is longer than max_tokens=12"):
        encode_unpaired(tokenizer, rows, max_tokens=12)


# ------------------------------------------- solutions


def test_a_step_ends_at_the_last_token_of_its_separator(tokenizer):
    rows = [Solution(TEA, ("one tea", "two tea please"), (1.0, None))]
    ((row, steps),) = encode_solutions(tokenizer, rows, max_tokens=99, separator=" . !")
    assert row is rows[0]
    # 8 tokens of prompt, then "one tea . !" (8..11) and "two tea please . !" (12..16)
    assert steps.step_ends == (11, 16)
    assert steps.labels == (1.0, None)
    assert tokenizer.decode(steps.example.input_ids[8:]) == "one tea . ! two tea please . !"
    assert [i for i, m in enumerate(steps.example.loss_mask) if m] == [11]  # 16 is unlabelled


def test_a_separator_without_tokens_leaves_the_end_on_the_steps_own_last_token(tokenizer):
    rows = [Solution(TEA, ("one tea", "two"), (0.5, 1.0))]
    ((_, steps),) = encode_solutions(
        tokenizer, rows, max_tokens=99
    )  # this tokenizer skips line breaks
    assert steps.step_ends == (9, 10)
    with pytest.raises(DataError, match="each of the 1 rows is longer than max_tokens=10"):
        encode_solutions(tokenizer, rows, max_tokens=10)


def test_a_solution_without_a_prompt_begins_with_the_bos_token(tokenizer):
    rows = [Solution((), ("one tea",), (1.0,))]
    ((_, steps),) = encode_solutions(tokenizer, rows, max_tokens=99)
    assert tokenizer.decode(steps.example.input_ids) == "<s> one tea"
    assert steps.step_ends == (2,)


def test_a_step_without_tokens_is_named(tokenizer):
    with pytest.raises(DataError, match="prompt 1: step 2 of the solution has no tokens"):
        rows = [Solution(TEA, ("one", " "), (1.0, 1.0))]
        encode_solutions(tokenizer, rows, max_tokens=99)


def test_nothing_gives_nothing(tokenizer):
    for encode in (
        encode_demonstrations, encode_texts, encode_pairs, encode_unpaired, encode_solutions,
    ):  # fmt: skip
        assert encode(tokenizer, [], max_tokens=9) == []
    assert list(windows([7], 9)) == []
    assert list(windows([7, 8], 9)) == [Example((7, 8), (0, 1))]
