"""Columns that a format joins, and numbers where a text is meant."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from stages.configs.data_config import FileDataConfig, HubDataConfig
from stages.configs.kto_config import KtoConfig
from stages.datasets import (
    Demonstration,
    Preference,
    UnpairedResponse,
    demonstrations,
    preferences,
    prompts,
    unpaired_responses,
)
from stages.files import write_jsonl
from stages.runtime.stage_key import semantic_part
from training_core.errors import DataError

PENS = {"Body": "A box has 3 pens.", "Question": "How many are in 2?", "Answer": 6.0}
JOINED = "{Body} {Question}"
ASKED = ({"role": "user", "content": "A box has 3 pens. How many are in 2?"},)


@pytest.fixture
def source(tmp_path):
    def write(*rows, **settings):
        write_jsonl(tmp_path / "rows.jsonl", rows)
        return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)

    return write


# ------------------------------------------- formats


def test_a_format_joins_columns_and_a_number_is_an_answer(source):
    data = source(PENS, columns={"prompt": JOINED, "response": "Answer"})
    assert demonstrations(data) == [Demonstration(ASKED, "6")]


def test_joined_columns_go_along_with_a_prompt(source):
    (row,) = prompts(source(PENS, columns={"prompt": JOINED, "answer": "Answer"}))
    assert row.prompt == ASKED
    assert row.columns == {"Body": PENS["Body"], "Question": PENS["Question"], "answer": 6.0}


def test_a_list_in_a_format_has_a_line_for_each_item(source):
    row = {"question": "Which?", "options": ["A) 1", "B) 2"], "correct": "B"}
    (found,) = prompts(source(row, columns={"prompt": "{question}\n{options}\nAnswer:"}))
    assert found.prompt[0]["content"] == "Which?\nA) 1\nB) 2\nAnswer:"
    assert found.columns == row


def test_a_role_may_be_a_format_of_the_column_of_its_own_name(source):
    row = {"question": "Which?", "options": "1 or 2", "answer": "1"}
    (found,) = demonstrations(source(row, columns={"question": "{question} ({options})"}))
    assert found.prompt[0]["content"] == "Which? (1 or 2)"


def test_both_sides_of_a_pair_may_be_formats(source):
    row = {"prompt": "Two tea.", "start": "Yes", "good": "please sit.", "bad": "no."}
    columns = {"chosen": "{start}, {good}", "rejected": "{start}, {bad}"}
    (found,) = preferences(source(row, columns=columns))
    assert (found.chosen, found.rejected) == ("Yes, please sit.", "Yes, no.")


@pytest.mark.parametrize("value", [None, {"a": 1}, [["x"]], True], ids=str)
def test_a_row_without_a_text_for_a_format_is_named(source, value):
    data = source(PENS, {**PENS, "Body": value}, columns={"prompt": JOINED})
    expected = r"rows\.jsonl, row 2, field 'Body': expected a text, a number or a list of these"
    with pytest.raises(DataError, match=expected):
        prompts(data)


def test_a_format_with_a_column_that_is_missing_is_named(source):
    data = source(PENS, columns={"prompt": "{Body} {Ask}"})
    expected = r"no field 'Ask', which the format '\{Body\} \{Ask\}' joins for 'prompt' \(found: Bo"
    with pytest.raises(DataError, match=expected):
        prompts(data)


@pytest.mark.parametrize(
    "text",
    ["{}", "{", "}", "{Body", "Body}", "{{Body}}", "{Body!r}", "{Body:>9}", "{Body[0]}", "{a}{b"],
)
def test_anything_but_a_plain_placeholder_is_refused_with_the_config(text):
    with pytest.raises(ValidationError, match="'prompt': expected a format with plain placeh"):
        FileDataConfig(path="x.jsonl", columns={"prompt": text})


def test_a_format_is_never_evaluated(source):
    with pytest.raises(DataError, match=r"no field 'Body\.__class__', which the format"):
        prompts(source(PENS, columns={"prompt": "{Body.__class__}"}))
    row = {"a.b": "dotted", "text": "{a.b} {0}"}
    (found,) = prompts(source(row, columns={"prompt": "{a.b} {text}"}))
    assert found.prompt[0]["content"] == "dotted {a.b} {0}"


def test_one_format_cannot_be_two_roles():
    with pytest.raises(ValidationError, match="mapped to both"):
        FileDataConfig(path="x.jsonl", columns={"chosen": "{a} {b}", "rejected": "{a} {b}"})


def test_formats_need_no_new_field_so_keys_of_other_stages_stay():
    common = {"name", "split", "columns", "limit", "sample", "sample_seed", "skip_bad_rows"}
    assert set(semantic_part(FileDataConfig(path="x"))) == common
    hub = semantic_part(HubDataConfig(repo="a/b"))
    assert set(hub) == common | {"repo", "revision", "config"}


# ------------------------------------------- numbers


@pytest.mark.parametrize(
    ("number", "text"),
    [(42, "42"), (-1, "-1"), (0, "0"), (42.0, "42"), (0.5, "0.5"), (1e20, "1e+20")],
)
def test_a_number_is_read_as_an_answer(source, number, text):
    (found,) = demonstrations(source({"question": "how many?", "answer": number}))
    assert found.response == text
    (pair,) = preferences(source({"prompt": "how many?", "chosen": number, "rejected": "none"}))
    assert pair.chosen == text


def test_a_number_is_the_input_of_an_instruction(source):
    (row,) = demonstrations(source({"instruction": "Double it.", "input": 0, "output": 0}))
    assert row == Demonstration(({"role": "user", "content": "Double it.\n\n0"},), "0")


@pytest.mark.parametrize("value", [True, float("nan")])
def test_a_truth_value_is_no_text_and_neither_is_what_is_no_number(tmp_path, value):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "response": value}))
    with pytest.raises(DataError):
        demonstrations(FileDataConfig(path=str(tmp_path / "rows.jsonl")))


def test_a_column_of_numbers_and_texts_is_read(source):
    rows = [{"question": "a", "answer": 42}, {"question": "b", "answer": "7:3"}]
    assert [row.response for row in demonstrations(source(*rows))] == ["42", "7:3"]
    assert [row.columns for row in prompts(source(*rows))] == [{"answer": 42}, {"answer": "7:3"}]


def test_an_empty_cell_does_not_change_the_numbers_beside_it(tmp_path):
    (tmp_path / "rows.csv").write_text("question,answer\na,42\nb,\nc,7\n")
    data = FileDataConfig(path=str(tmp_path / "rows.csv"), skip_bad_rows=True)
    assert [row.response for row in demonstrations(data)] == ["42", "7"]


# ------------------------------------------- ratings


def test_ratings_become_labels_by_a_threshold_in_any_column(source):
    rows = [{"prompt": "a colour?", "response": "blue", "helpfulness": n} for n in (4, 3, 1)]
    data = source(*rows, columns={"score": "helpfulness"})
    config = KtoConfig(data=data, threshold=3)
    found = unpaired_responses(config.data, threshold=config.threshold)
    assert [row.is_desirable for row in found] == [True, True, False]


def test_ratings_beside_a_conversation_as_json(source):
    context = json.dumps([{"speaker": "USER", "text": "two tea"}])
    rows = [{"context": context, "generation": 7, "reward": n} for n in (0, 1)]
    data = source(*rows, columns={"context_messages": "context", "response": "generation"})
    asked = ({"role": "user", "content": "two tea"},)
    assert unpaired_responses(data, threshold=1) == [
        UnpairedResponse(asked, "7", False),
        UnpairedResponse(asked, "7", True),
    ]


def test_a_label_that_is_a_rating_says_how_it_is_read(source):
    data = source({"prompt": "a", "response": "b", "label": 4})
    with pytest.raises(DataError, match=r"set `threshold` and map it with `columns: \{score: <"):
        unpaired_responses(data)


def test_a_preference_keeps_its_meaning(source):
    row = {"prompt": "two tea", "chosen": "yes", "rejected": "no", "winner": "rejected"}
    assert preferences(source(row)) == [
        Preference(({"role": "user", "content": "two tea"},), "yes", "no")
    ]
