"""Each kind of row in each of its shapes, as OpenRLHF, TRL and others write them."""

import json

import pytest

from stages.configs.data_config import CafeDataConfig, FileDataConfig
from stages.datasets import (
    Demonstration,
    Preference,
    Solution,
    UnpairedResponse,
    demonstrations,
    preferences,
    prompts,
    solutions,
    texts,
    unpaired_responses,
)
from stages.files import write_jsonl
from training_core.errors import DataError

Q = {"role": "user", "content": "two tea"}
A = {"role": "assistant", "content": "yes"}
B = {"role": "assistant", "content": "no"}
SYSTEM = {"role": "system", "content": "be kind"}


def data(tmp_path, *rows, **settings):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)


# ------------------------------------------- demonstrations


@pytest.mark.parametrize(
    "row",
    [
        {"input": "two tea", "output": "yes"},
        {"input": [Q], "output": [A]},
        {"instruction": "two tea", "output": "yes"},
        {"instruction": "two tea", "input": "", "output": "yes"},
        {"instruction": "two tea", "input": None, "response": "yes"},
        {"question": "two tea", "response": "yes"},
        {"prompt": "two tea", "output": "yes"},
        {"conversations": [{"from": "human", "value": "two tea"}, {"from": "gpt", "value": "yes"}]},
        {"messages": [Q, A], "prompt": "two tea", "prompt_id": 7},  # as UltraChat has them
        {"prompt": [Q], "response": [A], "system_prompt": "not asked for"},
    ],
    ids="+".join,
)
def test_a_demonstration_is_recognised_from_its_columns(tmp_path, row):
    assert demonstrations(data(tmp_path, row)) == [Demonstration((Q,), "yes")]


def test_an_input_follows_its_instruction(tmp_path):
    row = {"instruction": "Translate.", "input": "tea", "output": "Tee"}
    (found,) = demonstrations(data(tmp_path, row))
    assert found.prompt == ({"role": "user", "content": "Translate.\n\ntea"},)


def test_a_reward_and_a_mapped_system_prompt_come_along(tmp_path):
    row = {"prompt": "two tea", "response": "yes", "score": 0, "sys": "be kind"}
    source = data(tmp_path, row, columns={"reward": "score", "system": "sys"})
    assert demonstrations(source) == [Demonstration((SYSTEM, Q), "yes", reward=0.0)]


def test_answers_before_the_last_one_belong_to_the_prompt(tmp_path):
    tool = {"role": "tool", "content": "{}"}
    (found,) = demonstrations(data(tmp_path, {"prompt": [Q], "completion": [A, tool, B]}))
    assert found == Demonstration((Q, A, tool), "no")


# ------------------------------------------- tables that fit none or several shapes


def test_a_table_that_fits_two_shapes_is_an_error_that_names_both_and_a_mapping_decides(tmp_path):
    row = {"prompt": "two tea", "response": "yes", "completion": "no"}
    with pytest.raises(
        DataError, match=r"in 2 ways: prompt \+ response; prompt \+ completion.*Choose"
    ):
        demonstrations(data(tmp_path, row))
    chosen = data(tmp_path, row, columns={"completion": "completion"})
    assert demonstrations(chosen) == [Demonstration((Q,), "no")]


def test_the_shape_that_uses_more_columns_is_meant(tmp_path):
    row = {"instruction": "two tea", "input": "now", "output": "yes"}  # also input + output
    assert demonstrations(data(tmp_path, row))[0].prompt[0]["content"] == "two tea\n\nnow"
    row = {"question": "two tea", "chosen": "yes", "rejected": "no"}  # also chosen + rejected
    assert preferences(data(tmp_path, row)) == [Preference((Q,), "yes", "no")]


def test_a_column_is_not_used_twice(tmp_path):
    row = {"prompt": "two tea", "completion": "yes"}
    found = demonstrations(data(tmp_path, row, columns={"response": "completion"}))
    assert found == [Demonstration((Q,), "yes")]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "narrator", "content": "x"}, "roles of system, user, assistant, tool"),
        ({"role": "user"}, "roles of system"),
        ({"role": "assistant", "content": "x", "tool_calls": [{"n": 1}]}, "without 'tool_calls'"),
        ({"role": "assistant", "content": "x", "thinking": "hm"}, "without 'thinking'"),
    ],
)
def test_a_message_that_would_be_misread_is_an_error(tmp_path, message, expected):
    with pytest.raises(DataError, match=rf"rows\.jsonl, row 1, field 'messages'.*{expected}"):
        demonstrations(data(tmp_path, {"messages": [Q, message, A]}))


# ------------------------------------------- texts


def test_texts_are_read_from_either_column(tmp_path):
    assert texts(data(tmp_path, {"text": " a\n", "id": 3})) == [" a\n"]
    assert texts(data(tmp_path, {"input": "b"})) == ["b"]
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2, field 'text': .*not blank"):
        texts(data(tmp_path, {"text": "a"}, {"text": " "}))
    assert texts(CafeDataConfig(size=1))[0].endswith((".", "!"))


# ------------------------------------------- preferences

WHOLE = {"chosen": [SYSTEM, Q, A], "rejected": [SYSTEM, Q, B]}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (WHOLE, Preference((SYSTEM, Q), "yes", "no")),
        ({"prompt": "two tea", **WHOLE}, Preference((SYSTEM, Q), "yes", "no")),
        (
            {"prompt": "two tea", "chosen": "yes", "rejected": "no", "margin": 0.5},
            Preference((Q,), "yes", "no", margin=0.5),
        ),
        (
            {"chosen": "The sky is blue.", "rejected": "The sky is black."},
            Preference(({"role": "user", "content": "The sky is"},), " blue.", " black."),
        ),
        (
            {
                "chosen": "\n\nHuman: two tea\n\nAssistant: yes",
                "rejected": "\n\nHuman: two tea\n\nAssistant: no",
            },
            Preference((Q,), "yes", "no"),
        ),
    ],
    ids=["implicit prompt", "prompt and whole", "margin", "common words", "HH-RLHF"],
)
def test_a_preference_is_recognised_from_its_columns(tmp_path, row, found):
    assert preferences(data(tmp_path, row)) == [found]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"chosen": [Q, A], "rejected": [SYSTEM, B]}, "differs .* only in the last message"),
        ({"chosen": "blue", "rejected": "green"}, "texts .* that begin with the same words"),
        (
            {"prompt": "one pie", "chosen": [Q, A], "rejected": [Q, B]},
            "that has the prompt before its answer",
        ),
        (
            {"chosen": "\n\nHuman: a\n\nHuman: b", "rejected": "\n\nHuman: a\n\nAssistant: b"},
            "alternating Human and Assistant turns",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "much"}, "a float"),
    ],
)
def test_a_preference_that_is_none_is_an_error(tmp_path, row, expected):
    with pytest.raises(DataError, match=rf"rows\.jsonl, row 1, field .*expected .*{expected}"):
        preferences(data(tmp_path, row))


# ------------------------------------------- ratings


@pytest.mark.parametrize("label", [True, 1, 1.0])
def test_a_label_says_whether_a_response_is_desirable(tmp_path, label):
    rows = [{"prompt": "two tea", "completion": "yes", "label": label}]
    assert unpaired_responses(data(tmp_path, *rows)) == [UnpairedResponse((Q,), "yes", True)]
    rows = [{"instruction": "two tea", "output": "no", "label": type(label)(0)}]
    assert unpaired_responses(data(tmp_path, *rows)) == [UnpairedResponse((Q,), "no", False)]


def test_a_score_needs_a_threshold_and_reaches_it_at_equality(tmp_path):
    rows = [{"prompt": "two tea", "response": "yes", "label": score} for score in (0.4, 0.5)]
    source = data(tmp_path, *rows, columns={"score": "label"})
    assert [r.is_desirable for r in unpaired_responses(source, threshold=0.5)] == [False, True]
    with pytest.raises(DataError, match=r"'label': expected true, false, 1 or 0 .*threshold"):
        unpaired_responses(data(tmp_path, *rows))


def test_preferences_are_two_ratings_each(tmp_path):
    found = unpaired_responses(
        data(tmp_path, {"prompt": "two tea", "chosen": "yes", "rejected": "no"})
    )
    assert found == [UnpairedResponse((Q,), "yes", True), UnpairedResponse((Q,), "no", False)]
    assert sum(r.is_desirable for r in unpaired_responses(CafeDataConfig(size=5))) == 5


# ------------------------------------------- solutions

STEPS = ("Step 1: 1+1=2", "Step 2: 2+2=5")


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        ({"prompt": "two tea", "completions": STEPS, "labels": [True, False]}, (1.0, 0.0)),
        ({"prompt": [Q], "steps": STEPS, "step_labels": [True, None]}, (1.0, None)),
        ({"prompt": [Q], "steps": STEPS, "labels": [1, 0.5]}, (1.0, 0.5)),
        ({"input": f"two tea {STEPS[0]} ки\n{STEPS[1]} ки", "value": ["+", "-"]}, (1.0, 0.0)),
        ({"input": f"two tea {STEPS[0]} ки\n{STEPS[1]} ки", "value": [0.8, 0.1]}, (0.8, 0.1)),
    ],
    ids=["TRL", "null", "labels", "OpenRLHF hard", "OpenRLHF soft"],
)
def test_a_solution_is_recognised_from_its_columns(tmp_path, row, labels):
    assert solutions(data(tmp_path, row)) == [Solution((Q,), STEPS, labels)]


def test_another_mark_and_a_question_that_stays_in_the_first_step(tmp_path):
    row = {"input": "two tea: 1 <s> 2 <s>", "value": [1, 0]}
    (found,) = solutions(data(tmp_path, row), placeholder="<s>", first_step=None)
    assert found == Solution((), ("two tea: 1", "2"), (1.0, 0.0))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "a", "completions": ["b"], "labels": [True, True]}, "1 labels, one per step"),
        ({"prompt": "a", "completions": [1, 2], "labels": [True, True]}, "a list of texts"),
        ({"prompt": "a", "completions": [], "labels": []}, "a list of at least one item"),
        ({"prompt": "a", "completions": ["b"], "labels": [1.5]}, "a number from 0 to 1"),
        ({"prompt": "a", "completions": ["b"], "labels": [None]}, "a label for at least one step"),
        ({"input": "a Step 1: b ки c", "value": ["+"]}, "that each end with the mark 'ки'"),
        ({"input": "a b ки", "value": ["+"]}, "a first step that begins with 'Step 1:'"),
    ],
)
def test_a_solution_that_is_none_is_an_error(tmp_path, row, expected):
    with pytest.raises(DataError, match=rf"rows\.jsonl.*{expected}"):
        solutions(data(tmp_path, row))


# ------------------------------------------- prompts


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two tea", "question": "the prompt's own column goes first"},
        {"question": "two tea", "answer": "42"},
        {"messages": [Q, A]},
        {"context_messages": [Q]},
    ],
    ids="+".join,
)
def test_a_prompt_is_recognised_and_its_answer_left_out(tmp_path, row):
    assert [row.prompt for row in prompts(data(tmp_path, row))] == [(Q,)]


def test_the_cafe_has_no_solutions_and_says_what_it_has():
    with pytest.raises(
        DataError, match="`name: cafe` has no rows of kind solutions; it has demonstrations, texts"
    ):
        solutions(CafeDataConfig())


def test_a_json_array_of_messages_in_one_file_reads_like_lines(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([{"messages": [Q, A]}]))
    found = demonstrations(FileDataConfig(path=str(tmp_path / "rows.json")))
    assert found == [Demonstration((Q,), "yes")]
