"""The forms of turns of a conversation."""

from __future__ import annotations

import csv
import json

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import Demonstration, demonstrations, preferences, prompts
from stages.datasets.turn_forms import AUTHORS, EXCHANGES, TURNS
from stages.files import write_jsonl
from training_core.errors import DataError

SAID = ("two tea", "here you are", "thanks", "you are welcome")
PROMPT = tuple(
    {"role": role, "content": text}
    for role, text in zip(("user", "assistant", "user"), SAID, strict=False)
)
FOUND = [Demonstration(PROMPT, SAID[3])]


@pytest.fixture
def source(tmp_path):
    def write(*rows, **settings):
        write_jsonl(tmp_path / "rows.jsonl", rows)
        return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)

    return write


def turns(keys, user="user", assistant="assistant"):
    names = (user, assistant, user, assistant)
    return [dict(zip(keys, pair, strict=True)) for pair in zip(names, SAID, strict=True)]


@pytest.mark.parametrize("keys", TURNS, ids="+".join)
def test_every_form_of_a_turn(source, keys):
    row = {"talk": [{**turn, "id": 1} for turn in turns(keys)]}
    assert demonstrations(source(row, columns={"messages": "talk"})) == FOUND


@pytest.mark.parametrize("keys", EXCHANGES, ids="+".join)
def test_every_form_of_an_exchange(source, keys):
    talk = [dict(zip(keys, SAID[i : i + 2], strict=True)) for i in (0, 2)]
    assert demonstrations(source({"messages": talk})) == FOUND
    talk[1][keys[1]] = None
    (asked,) = prompts(source({"messages": talk}))
    assert asked.prompt == PROMPT


@pytest.mark.parametrize(("name", "role"), AUTHORS.items())
def test_every_author_is_read_in_any_case(source, name, role):
    said = [{"role": name.upper(), "text": "a"}, {"role": "user", "text": "b"}]
    (found,) = prompts(source({"prompt": said}))
    assert [message["role"] for message in found.prompt] == [role, "user"]


def test_the_system_of_a_task_oriented_dialogue_answers(source):
    assert (
        demonstrations(source({"messages": turns(("speaker", "text"), "USER", "SYSTEM")})) == FOUND
    )


def test_texts_are_turns_in_alternation_only_in_a_conversation(source):
    assert demonstrations(source({"messages": SAID})) == FOUND
    with pytest.raises(DataError, match="row 1, field 'prompt': expected a text or a list of"):
        prompts(source({"prompt": SAID}))


def test_a_conversation_may_be_json_in_a_cell(tmp_path):
    cells = [json.dumps(turns(("from", "value"), "human", "gpt")), "[not JSON]", "[1, 2]"]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], *([cell] for cell in cells)])
    found = prompts(FileDataConfig(path=str(tmp_path / "rows.csv")))
    assert found[0].prompt == PROMPT
    assert [row.prompt[0]["content"] for row in found[1:]] == cells[1:]


def test_json_that_a_response_is_stays_a_text(source):
    text = json.dumps([{"question": "who?", "answer": "I"}])
    row = {"prompt": "Write a question as JSON.", "response": text}
    assert demonstrations(source(row))[0].response == text


def test_columns_of_user_and_assistant(source):
    row = {"user": "two tea", "assistant": "here you are", "id": 7}
    assert demonstrations(source(row)) == [Demonstration(PROMPT[:1], SAID[1])]
    (asked,) = prompts(source(row))
    assert (asked.prompt, asked.columns) == (PROMPT[:1], {"assistant": SAID[1], "id": 7})


@pytest.mark.parametrize(
    ("ask", "say"),
    [
        ("question", "answer"),
        ("problem", "solution"),
        ("query", "response"),
        ("context_messages", "completion"),
    ],
)
def test_common_names_of_questions_and_answers(source, ask, say):
    assert demonstrations(source({ask: SAID[0], say: SAID[1]})) == [
        Demonstration(PROMPT[:1], SAID[1])
    ]
    assert [row.prompt for row in prompts(source({ask: SAID[0], say: SAID[1]}))] == [PROMPT[:1]]


def test_the_common_shapes_have_precedence_and_a_mapping_goes_before_them(source):
    row = {"prompt": "two tea", "response": "yes", "problem": "one tea", "solution": "no"}
    assert demonstrations(source(row))[0].response == "yes"
    chosen = source(row, columns={"problem": "problem", "solution": "solution"})
    assert demonstrations(chosen)[0].response == "no"


def test_a_mapped_role_that_no_shape_would_use_is_an_error(source):
    row = {"question": "one tea", "answer": "no", "text": "yes"}
    with pytest.raises(DataError, match="cannot be read as demonstrations: its columns are"):
        demonstrations(source(row, columns={"completion": "text"}))


def test_pairs_of_conversations_in_turns_of_speakers(source):
    keys = ("speaker", "text")
    row = {
        "chosen": turns(keys)[:2],
        "rejected": [*turns(keys)[:1], {"speaker": "bot", "text": "no"}],
    }
    (found,) = preferences(source(row))
    assert (found.prompt, found.chosen, found.rejected) == (PROMPT[:1], SAID[1], "no")


def test_an_unknown_speaker_is_named_with_the_table(source):
    talk = turns(("speaker", "text"), "Anna", "Ben")
    expected = r"row 1, field 'messages': expected .*docs/data\.md has a table of other forms"
    with pytest.raises(DataError, match=expected):
        demonstrations(source({"messages": talk}))
