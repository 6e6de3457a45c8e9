"""Rows in one shape each, and errors that say where a bad one is."""

import csv
import gzip
import json

import pytest
from datasets import Dataset

from stages.configs.data_config import CafeDataConfig, FileDataConfig
from stages.datasets import (
    Demonstration,
    Preference,
    demonstrations,
    preferences,
    prompts,
    read_lexicon,
)
from stages.files import write_jsonl
from training_core.errors import DataError

USER = ({"role": "user", "content": "two tea"},)
ROWS = [
    {"prompt": "two tea", "response": "here are two tea"},
    {"prompt": "one pie", "response": "no"},
]


def assistant(text):
    return [{"role": "assistant", "content": text}]


def write_json(path, rows):
    write_jsonl(path, rows)


def write_array(path, rows):
    path.write_text(json.dumps(rows))


def write_gz(path, rows):
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_csv(path, rows):
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path, rows):
    Dataset.from_list(rows).to_parquet(path)


FILES = [
    ("d.jsonl", write_json),
    ("d.json", write_array),
    ("d.jsonl.gz", write_gz),
    ("d.csv", write_csv),
    ("d.parquet", write_parquet),
    ("v1.2.d.jsonl.gz", write_gz),  # dots in the name are no endings
]


@pytest.mark.parametrize(("name", "write"), FILES, ids=[f[0] for f in FILES])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, write):
    write(tmp_path / name, ROWS)
    assert demonstrations(FileDataConfig(path=str(tmp_path / name))) == [
        Demonstration(USER, "here are two tea"),
        Demonstration(({"role": "user", "content": "one pie"},), "no"),
    ]


def file_of(tmp_path, rows, **settings):
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two tea", "response": "yes"},
        {"prompt": "two tea", "completion": "yes"},
        {"prompt": list(USER), "response": "yes"},
        {"prompt": list(USER), "completion": assistant("yes")},
        {"messages": [*USER, *assistant("yes")]},
    ],
    ids="+".join,
)
def test_every_format_of_demonstration(tmp_path, row):
    assert demonstrations(file_of(tmp_path, [row])) == [Demonstration(USER, "yes")]


def test_a_conversation_trains_its_last_answer_after_all_that_came_before(tmp_path):
    turns = [*USER, *assistant("yes"), {"role": "user", "content": "one pie"}, *assistant("no")]
    (row,) = demonstrations(file_of(tmp_path, [{"messages": turns}]))
    assert row.response == "no"
    assert row.prompt == tuple(turns[:3])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two tea", "chosen": "yes", "rejected": "no"},
        {"prompt": list(USER), "chosen": assistant("yes"), "rejected": assistant("no")},
        {
            "prompt": "two tea",
            "chosen": [
                *USER,
                *assistant("yes"),
            ],  # the whole conversation, as some datasets have it
            "rejected": [*USER, *assistant("no")],
        },
        {"chosen": [*USER, *assistant("yes")], "rejected": [*USER, *assistant("no")]},
    ],
    ids=["texts", "messages", "conversations", "conversations without a prompt"],
)
def test_every_format_of_pair(tmp_path, row):
    assert preferences(file_of(tmp_path, [row])) == [Preference(USER, "yes", "no")]


def test_columns_are_mapped_by_role(tmp_path):
    rows = [{"q": "two tea", "good": "yes", "bad": "no", "chosen": "not this one"}]
    columns = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    data = file_of(tmp_path, rows, columns=columns)
    assert preferences(data) == [Preference(USER, "yes", "no")]
    assert [row.prompt for row in prompts(data)] == [USER]


def test_the_limit_takes_the_first_rows(tmp_path):
    assert len(demonstrations(file_of(tmp_path, ROWS, limit=1))) == 1
    assert len(demonstrations(file_of(tmp_path, ROWS, limit=99))) == 2


def test_a_directory_from_the_graph_is_its_data_jsonl(tmp_path):
    write_jsonl(tmp_path / "data.jsonl", ROWS)
    assert len(demonstrations(tmp_path)) == 2


def test_the_cafe_is_a_dataset_of_every_kind():
    data = CafeDataConfig(size=3)
    assert len(demonstrations(data)) == len(preferences(data)) == len(prompts(data)) == 3


def test_text_outside_ascii_survives(tmp_path):
    rows = [{"prompt": "café ☕\u2028", "response": "ça va"}]
    (row,) = demonstrations(file_of(tmp_path, rows))
    assert row.prompt[0]["content"] == "café ☕\u2028"
    assert row.response == "ça va"


def test_a_changed_file_is_read_again(tmp_path):
    assert demonstrations(file_of(tmp_path, ROWS))[1].response == "no"
    changed = [ROWS[0], {"prompt": "one pie", "response": "ok"}]  # as long as before
    assert demonstrations(file_of(tmp_path, changed))[1].response == "ok"


def test_a_response_that_was_cut_is_marked_and_others_are_not(tmp_path):
    rows = [{"prompt": "a", "response": "b", "finished": f} for f in (True, False)]
    assert [d.is_finished for d in demonstrations(file_of(tmp_path, rows))] == [True, False]
    assert [d.is_finished for d in demonstrations(file_of(tmp_path, ROWS))] == [True, True]


def test_a_row_that_does_not_say_whether_it_is_finished_is(tmp_path):
    rows = [{"prompt": "a", "response": "b", "finished": True}, {"prompt": "c", "response": "d"}]
    assert [d.is_finished for d in demonstrations(file_of(tmp_path, rows))] == [True, True]


# ------------------------------------------------------------------ bad rows

GOOD = {"prompt": "two tea", "chosen": "yes", "rejected": "no"}


@pytest.mark.parametrize(
    ("load", "rows", "message"),
    [
        (
            preferences,
            [{"prompt": "a", "chosen": "b"}],
            r"rows\.jsonl cannot be read as preferences: its columns are prompt, chosen; ",
        ),
        (
            preferences,
            [GOOD, {**GOOD, "chosen": ""}],
            r"rows\.jsonl, row 2, field 'chosen': expected a non-empty",
        ),
        (preferences, [GOOD, {**GOOD, "rejected": " \n"}], r"rows\.jsonl, row 2, field 'rejected'"),
        (preferences, [GOOD, GOOD, {**GOOD, "chosen": None}], r"rows\.jsonl, row 3.*'chosen'"),
        (
            prompts,
            [{"prompt": 7}],
            r"rows\.jsonl, row 1, field 'prompt': expected a text or a list .* found '7'",
        ),
        (prompts, [{"prompt": []}], r"rows\.jsonl, row 1, field 'prompt'"),
        (prompts, [{"prompt": [{"role": "user"}]}], r"rows\.jsonl, row 1, field 'prompt'"),
        (
            demonstrations,
            [{"messages": list(USER)}],
            r"rows\.jsonl, row 1, field 'messages': expected a non-empty assistant message",
        ),
        (
            demonstrations,
            [{"messages": assistant("yes")}],
            r"rows\.jsonl, row 1, field 'messages': expected a prompt",
        ),
        (
            demonstrations,
            [{"text": "all in one"}],
            r"rows\.jsonl cannot be read as demonstrations: its columns are text; expected one "
            r"of: prompt \+ response; .*messages",
        ),
        (
            demonstrations,
            [{"prompt": "a", "response": [*USER]}],
            r"rows\.jsonl, row 1, field 'response': expected",
        ),
    ],
)
def test_a_bad_row_is_named_by_file_number_field_and_expectation(tmp_path, load, rows, message):
    with pytest.raises(DataError, match=message):
        load(file_of(tmp_path, rows))


def test_a_mapped_column_that_is_missing_is_named_as_the_file_knows_it(tmp_path):
    data = file_of(tmp_path, ROWS, columns={"prompt": "question"})
    with pytest.raises(DataError, match="no field 'question'"):
        prompts(data)


def test_a_file_that_is_not_there_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jsonl"):
        prompts(FileDataConfig(path=str(tmp_path / "gone.jsonl")))


def test_an_ending_that_nobody_reads_is_a_data_error(tmp_path):
    (tmp_path / "d.txt").write_text("x")
    with pytest.raises(DataError, match=r"d\.txt: expected a file ending in one of json, jsonl"):
        prompts(FileDataConfig(path=str(tmp_path / "d.txt")))


def test_a_broken_line_is_a_data_error_that_names_file_and_row(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": \n')
    with pytest.raises(DataError, match=r"d\.jsonl.* row 3"):
        prompts(FileDataConfig(path=str(tmp_path / "d.jsonl")))


def test_a_row_of_another_type_is_a_data_error_that_names_file_row_and_field(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": 7}]
    with pytest.raises(DataError, match=r"rows\.jsonl.*row 3.*prompt"):
        prompts(file_of(tmp_path, rows))


def test_an_empty_file_is_a_data_error(tmp_path):
    (tmp_path / "d.jsonl").write_text("")
    with pytest.raises(DataError, match=r"d\.jsonl"):
        prompts(FileDataConfig(path=str(tmp_path / "d.jsonl")))


def test_a_broken_gz_is_a_data_error(tmp_path):
    (tmp_path / "d.jsonl.gz").write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(DataError, match=r"d\.jsonl\.gz"):
        prompts(FileDataConfig(path=str(tmp_path / "d.jsonl.gz")))


@pytest.mark.parametrize("name", ["lexicon.jsonl", "lexicon.jsonl.gz"])
def test_a_lexicon_is_read_in_lower_case(tmp_path, name):
    write = write_gz if name.endswith("gz") else write_json
    write(tmp_path / name, [{"token": "Happy", "mean": 2.7}, {"token": "sad", "mean": "-2.1"}])
    assert read_lexicon(tmp_path / name) == {"happy": 2.7, "sad": -2.1}
