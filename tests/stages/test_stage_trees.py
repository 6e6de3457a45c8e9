"""Conversation trees as demonstrations, preferences and prompts."""

from __future__ import annotations

import copy
import logging

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import Demonstration, demonstrations, preferences, prompts, texts
from stages.datasets.kinds import PREFERENCES
from stages.datasets.reading import read
from stages.files import write_jsonl
from training_core.errors import DataError


def said(text, role="assistant", rank=None, replies=(), **more):
    ranked = {} if rank is None else {"rank": rank}
    return {"text": text, "role": role, **ranked, **more, "replies": list(replies)}


def asked(text, *replies, **more):
    return said(text, "prompter", replies=replies, **more)


TREE = asked(
    "a colour?",
    said("no", rank=2),
    said(
        "blue",
        rank=0,
        replies=[asked("why?", said("sky", rank=1), said("sea", rank=0)), asked("ok")],
    ),
    said("red", rank=1, replies=[asked("more?", said("pink"))]),
    said("spam", rank=0, deleted=True),
)
ROW = {"message_tree_id": "t1", "tree_state": "ready_for_export", "prompt": TREE}
USER = {"role": "user", "content": "a colour?"}
WHY = ({"role": "assistant", "content": "blue"}, {"role": "user", "content": "why?"})
PAIRS = [("blue", "red"), ("blue", "no"), ("red", "no"), ("sea", "sky")]


def flat(tree, parent=None, numbers=None):
    """The messages of a tree as rows, each with the id of its parent."""
    numbers = iter(range(99)) if numbers is None else numbers
    own = f"m{next(numbers)}"
    node = {k: v for k, v in tree.items() if k != "replies"}
    rows = [{"message_id": own, "parent_id": parent, "lang": "en", "rank": None, **node}]
    return rows + [row for reply in tree["replies"] for row in flat(reply, own, numbers)]


@pytest.fixture(params=["nested", "flat"])
def source(request, tmp_path):
    """A file of trees: one in each row, or one message in each row."""

    def write(*trees, **settings):
        numbers = iter(range(99))
        labels = {"labels": {"spam": 0}}  # of people, about the message
        rows = [
            {"message_tree_id": f"t{i}", "prompt": tree, **labels}
            for i, tree in enumerate(trees, 1)
        ]
        if request.param == "flat":
            rows = [
                {"message_tree_id": f"t{i}", **labels, **row}
                for i, tree in enumerate(trees, 1)
                for row in flat(tree, None, numbers)
            ]
        write_jsonl(tmp_path / "trees.jsonl", rows)
        return FileDataConfig(path=str(tmp_path / "trees.jsonl"), **settings)

    return write


def test_the_best_path_is_a_demonstration(source):
    assert demonstrations(source(TREE)) == [Demonstration((USER, *WHY), "sea")]


def test_ranked_answers_to_one_message_are_preferences(source):
    found = preferences(source(TREE))
    assert [(row.chosen, row.rejected) for row in found] == PAIRS
    assert read(PREFERENCES, source(TREE)).notes == []
    assert [row.prompt for row in found] == [(USER,)] * 3 + [(USER, *WHY)]


def test_the_first_message_is_a_prompt_and_the_columns_of_its_row_go_along(source):
    (found,) = prompts(source(TREE))
    assert found.prompt == (USER,)
    assert found.columns["message_tree_id"] == "t1"


def test_limits_count_trees(source):
    trees = [asked(f"{i}?", said("yes", rank=0), said("no", rank=1)) for i in range(5)]
    assert [row.prompt[0]["content"] for row in demonstrations(source(*trees, limit=2))] == [
        "0?",
        "1?",
    ]
    assert len(preferences(source(*trees, sample=3))) == 3


def test_answers_of_equal_rank_or_none_are_no_pair_and_counted(source, caplog):
    trees = [TREE, asked("ok?", said("yes", rank=1), said("no", rank=1), said("oh"))]
    with caplog.at_level(logging.WARNING):
        assert len(preferences(source(*trees))) == len(PAIRS)
    assert "1 rows have no preferences (the first: trees.jsonl, row " in caplog.text
    with pytest.raises(DataError, match=r"there are no preferences: 1 rows .* different ranks"):
        preferences(source(trees[1]))


def test_a_reply_without_a_rank_comes_after_those_that_have_one(source):
    tree = asked("ok?", said("first"), said("best", rank=3))
    assert demonstrations(source(tree))[0].response == "best"
    assert demonstrations(source(asked("ok?", said("first"), said("later"))))[0].response == "first"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"role": "judge"}, r"expected messages \{text, role, rank\} with roles of prompter"),
        ({"text": " "}, r"expected messages \{text, role, rank\}"),
        ({"rank": "best"}, r"expected messages \{text, role, rank\}"),
        ({"deleted": True}, "expected a message with an answer of the assistant"),
    ],
)
def test_a_tree_that_is_none_is_named(source, change, expected):
    tree = asked("ok?", {**said("yes"), **change})
    with pytest.raises(DataError, match=rf"trees\.jsonl, row 1, field '\w+': {expected}"):
        demonstrations(source(tree))


def test_the_column_of_the_trees_may_have_any_name_and_be_mapped(tmp_path):
    write_jsonl(tmp_path / "trees.jsonl", [{"id": 1, "talk": TREE}])
    for columns in ({}, {"tree": "talk"}):
        data = FileDataConfig(path=str(tmp_path / "trees.jsonl"), columns=columns)
        assert demonstrations(data)[0].response == "sea"
        assert read(PREFERENCES, data).forms == ["tree = talk"]


def test_a_message_whose_parent_is_missing_is_a_bad_row(tmp_path):
    rows = flat(TREE)
    write_jsonl(
        tmp_path / "trees.jsonl", [*rows, {**rows[1], "message_id": "x", "parent_id": "gone"}]
    )
    data = FileDataConfig(path=str(tmp_path / "trees.jsonl"))
    expected = rf"trees\.jsonl, row {len(rows) + 1}, field 'parent_id': expected the id .* 'gone'"
    with pytest.raises(DataError, match=expected):
        demonstrations(data)
    assert len(demonstrations(data.model_copy(update={"skip_bad_rows": True}))) == 1


def test_a_message_in_each_row_may_have_its_replies_with_it(tmp_path):
    write_jsonl(tmp_path / "trees.jsonl", [{"message_id": "m", "parent_id": None, **TREE}])
    data = FileDataConfig(path=str(tmp_path / "trees.jsonl"))
    assert demonstrations(data)[0].response == "sea"


def test_messages_with_parents_are_still_texts(tmp_path):
    write_jsonl(tmp_path / "trees.jsonl", flat(TREE))
    assert len(texts(FileDataConfig(path=str(tmp_path / "trees.jsonl")))) == len(flat(TREE))


def test_trees_of_very_different_depth_are_read(tmp_path):
    deep = said("end", rank=0)
    for level in range(40):
        deep = said(f"level {level}", "prompter" if level % 2 == 0 else "assistant", replies=[deep])
    rows = [
        {"prompt": copy.deepcopy(tree)}
        for tree in (TREE, asked("hm?", said("yes")), asked("go", deep))
    ]
    write_jsonl(tmp_path / "trees.jsonl", rows)
    found = demonstrations(FileDataConfig(path=str(tmp_path / "trees.jsonl")))
    assert [row.response for row in found] == ["sea", "yes", "end"]
    assert len(found[2].prompt) == 41
