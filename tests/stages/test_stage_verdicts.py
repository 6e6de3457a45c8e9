"""Two answers with a verdict, and the first wrong step of a solution."""

from __future__ import annotations

import logging

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import preferences, prompts, solutions, unpaired_responses
from stages.datasets.kinds import PREFERENCES
from stages.datasets.reading import read
from stages.datasets.verdicts import SIDES, TIES
from stages.files import write_jsonl
from training_core.errors import DataError

ASK = {"prompt": "a colour?"}
A_B = {**ASK, "response_a": "blue", "response_b": "red"}


@pytest.fixture
def source(tmp_path):
    def write(*rows, **settings):
        write_jsonl(tmp_path / "rows.jsonl", rows)
        return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)

    return write


def chosen(data):
    return [row.chosen for row in preferences(data)]


@pytest.mark.parametrize("winner", ["response_a", "a", "A", "model_a", "Model A", "first", "left"])
def test_a_verdict_names_the_first_answer(source, winner):
    (found,) = preferences(source({**A_B, "winner": winner}))
    assert (found.chosen, found.rejected) == ("blue", "red")


@pytest.mark.parametrize("winner", ["response_b", "b", "B", "model_b", "assistant-b", "second"])
def test_a_verdict_names_the_second_answer(source, winner):
    (found,) = preferences(source({**A_B, "winner": winner}))
    assert (found.chosen, found.rejected) == ("red", "blue")


@pytest.mark.parametrize("sides", SIDES, ids="+".join)
def test_every_known_pair_of_columns_is_recognised_and_its_ends_are_names(source, sides):
    end = sides[1][-1]
    value = int(end) if end.isdigit() else end
    row = {**ASK, sides[0]: "blue", sides[1]: "red", "winner": value}
    assert chosen(source(row)) == ["red"]
    assert read(PREFERENCES, source(row)).forms == [
        f"prompt + first = {sides[0]} + second = {sides[1]} + winner"
    ]


@pytest.mark.parametrize(
    ("role", "values"),
    [
        ("winner_index", (0, 1)),
        ("winner_number", (1, 2)),
        ("first_wins", (1, 0)),
        ("first_wins", (True, False)),
        ("winner", (1, 2)),
        ("winner", ("1", "output_2")),
    ],
)
def test_numbers_are_read_as_the_role_says(source, role, values):
    row = {"input": "a colour?", "output_1": "blue", "output_2": "red"}
    rows = [{**row, "label": value} for value in values]
    columns = {"first": "output_1", "second": "output_2", role: "label"}
    assert chosen(source(*rows, columns=columns)) == ["blue", "red"]


def test_the_names_of_the_columns_decide_and_not_their_order(source):
    columns = {"first": "response_b", "second": "response_a"}
    assert chosen(source({**A_B, "winner": "a"}, columns=columns)) == ["blue"]


@pytest.mark.parametrize(
    ("first", "second", "found"), [(1, 0, ["blue"]), (0, 1, ["red"]), (0, 0, [])]
)
def test_a_verdict_in_a_column_for_each_answer_may_be_a_tie(source, first, second, found):
    rows = [{**A_B, "a_wins": first, "b_wins": second}, {**A_B, "a_wins": 1, "b_wins": 0}]
    columns = {
        "first": "response_a",
        "second": "response_b",
        "first_wins": "a_wins",
        "second_wins": "b_wins",
    }
    assert chosen(source(*rows, columns=columns)) == [*found, "blue"]


@pytest.mark.parametrize("tie", sorted(TIES))
def test_ties_are_left_out_and_counted(source, tie, caplog):
    with caplog.at_level(logging.WARNING):
        assert chosen(source({**A_B, "winner": tie}, {**A_B, "winner": "a"})) == ["blue"]
    assert "1 rows have no preferences (the first: rows.jsonl, row 1): a tie" in caplog.text


@pytest.mark.parametrize("winner", [None, "c", "", "gpt-4", "neither of them"])
def test_a_verdict_that_names_nobody_is_a_bad_row(source, winner):
    data = source({**A_B, "winner": "a"}, {**A_B, "winner": winner})
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2.*'winner'"):
        preferences(data)
    assert chosen(data.model_copy(update={"skip_bad_rows": True})) == ["blue"]


@pytest.mark.parametrize("number", [0, 1, "1", 2.0, True])
def test_a_number_that_names_no_column_is_never_skipped(source, number):
    """0 and 1 may be positions, or say whether the first answer won: half would be inverted."""
    data = source({**A_B, "winner": number}, skip_bad_rows=True)
    with pytest.raises(
        DataError, match=r"row 1, field 'winner': expected a name, .*`winner_index` "
    ):
        preferences(data)
    rows = [{**ASK, "output_1": "blue", "output_2": "red", "winner": n} for n in (1, 0)]
    with pytest.raises(DataError, match=r"row 2, field 'winner': expected a name, .*found '0'"):
        preferences(source(*rows, skip_bad_rows=True))


@pytest.mark.parametrize(
    ("role", "value"), [("winner_index", 2), ("winner_number", 0), ("first_wins", "a")]
)
def test_a_number_out_of_range_is_named(source, role, value):
    columns = {"first": "response_a", "second": "response_b", role: "won"}
    with pytest.raises(DataError, match=rf"row 1, field 'won': expected .*found '{value}'"):
        preferences(source({**A_B, "won": value}, columns=columns))


def test_a_missing_flag_is_not_a_victory(source):
    columns = {"first": "response_a", "second": "response_b", "first_wins": "won"}
    data = source({**A_B, "won": 1}, {**A_B, "won": None}, columns=columns)
    with pytest.raises(DataError, match=r"row 2: there is no field 'won'"):
        preferences(data)


def test_whole_conversations_with_a_verdict(source):
    def talk(answer):
        return [{"role": "user", "content": "a colour?"}, {"role": "assistant", "content": answer}]

    row = {"conversation_a": talk("blue"), "conversation_b": talk("red"), "winner": "model_b"}
    (found,) = preferences(source(row))
    assert (found.prompt[0]["content"], found.chosen, found.rejected) == (
        "a colour?",
        "red",
        "blue",
    )


def test_an_instruction_with_its_input_and_a_verdict(source):
    row = {"instruction": "Translate.", "input": "tea", "output_1": "Tee", "output_2": "Kaffee"}
    (found,) = preferences(source({**row, "preference": 1}, columns={"winner": "preference"}))
    assert (found.prompt[0]["content"], found.chosen) == ("Translate.\n\ntea", "Tee")


def test_a_verdict_gives_two_ratings_and_a_tie_none(source):
    found = unpaired_responses(source({**A_B, "winner": "b"}, {**A_B, "winner": "tie"}))
    assert [(row.response, row.is_desirable) for row in found] == [("red", True), ("blue", False)]


def test_chosen_and_rejected_have_precedence(source):
    row = {**A_B, "winner": "b", "chosen": "green", "rejected": "grey"}
    assert chosen(source(row)) == ["green"]


def test_three_answers_are_not_guessed(source):
    row = {**ASK, "response_0": "blue", "response_1": "red", "response_2": "grey", "winner": 1}
    with pytest.raises(DataError, match="cannot be read as preferences: its columns are"):
        preferences(source(row))


def test_both_answers_go_along_with_a_prompt(source):
    (found,) = prompts(source({**A_B, "winner": "b"}))
    assert found.columns == {"response_a": "blue", "response_b": "red", "winner": "b"}


def test_an_unused_label_says_how_it_is_used(source):
    row = {"input": "a colour?", "output_1": "blue", "output_2": "red", "label": 2}
    data = source(row, columns={"chosen": "output_1", "rejected": "output_2"})
    remedy = "`columns: {first: output_1, second: output_2, winner: label}`"
    assert remedy in read(PREFERENCES, data).notes[0]


# ------------------------------------------- the first wrong step

STEPS = ["1 + 2 = 3", "3 + 3 = 7", "The sum is 7."]
ALL_RIGHT, SECOND_WRONG = (1.0, 1.0, 1.0), (1.0, 0.0, None)


@pytest.mark.parametrize(
    ("role", "value", "labels"),
    [
        ("first_error_index", 1, SECOND_WRONG),
        ("first_error_number", 2, SECOND_WRONG),
        ("first_error_number", "2", SECOND_WRONG),
        ("first_error_index", 0, (0.0, None, None)),
        ("first_error_number", 3, (1.0, 1.0, 0.0)),
        ("first_error_index", -1, ALL_RIGHT),
        ("first_error_index", None, ALL_RIGHT),
        ("first_error_number", "N/A", ALL_RIGHT),
    ],
)
def test_steps_are_labelled_until_the_first_wrong_one(source, role, value, labels):
    row = {"problem": "1 + 2 + 3?", "steps": STEPS, "error": value, "label": "x"}
    (found,) = solutions(source(row, columns={role: "error"}))
    assert found.prompt == ({"role": "user", "content": "1 + 2 + 3?"},)
    assert (found.steps, found.labels) == (tuple(STEPS), labels)


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("first_error_index", 3),
        ("first_error_number", 0),
        ("first_error_number", 4),
        ("first_error_index", 0.5),
        ("first_error_index", True),
        ("first_error_index", "late"),
    ],
)
def test_a_step_that_does_not_exist_is_named_with_both_ways_to_count(source, role, value):
    row = {"prompt": "1 + 2 + 3?", "steps": STEPS, "error": value}
    expected = r"row 1, field 'error': expected the first wrong step of 3, counted from [01] \(for"
    with pytest.raises(DataError, match=expected):
        solutions(source(row, columns={role: "error"}))


def test_a_mapped_first_error_goes_before_labels_of_each_step(source):
    row = {"prompt": "1 + 2 + 3?", "steps": STEPS, "step_labels": [True] * 3, "mistake_index": 1}
    assert solutions(source(row))[0].labels == ALL_RIGHT
    (found,) = solutions(source(row, columns={"first_error_index": "mistake_index"}))
    assert found.labels == SECOND_WRONG
