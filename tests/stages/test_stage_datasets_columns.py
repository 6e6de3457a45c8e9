"""What a prompt's row says beside the prompt goes along with it to the reward."""

from __future__ import annotations

import logging
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet
import pytest

from stages.configs.data_config import CafeDataConfig, FileDataConfig, MixedDataConfig
from stages.configs.sampling_config import RolloutConfig
from stages.datasets import PromptRow, prompts
from stages.files import write_jsonl
from stages.sampling.rollouts import load_prompts

ASK = {"role": "user", "content": "two tea please"}
SAYS = {"role": "assistant", "content": "yes"}


def data(tmp_path, *rows, **settings):
    write_jsonl(tmp_path / "data.jsonl", rows)
    return FileDataConfig(path=str(tmp_path / "data.jsonl"), **settings)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"prompt": "two tea", "answer": "2"}, {"answer": "2"}),
        ({"question": "two tea", "answer": "2"}, {"answer": "2"}),
        ({"prompt": [ASK], "question": "two tea", "n": 2}, {"question": "two tea", "n": 2}),
        ({"messages": [ASK, SAYS], "level": 0.5, "ok": True}, {"level": 0.5, "ok": True}),
        ({"instruction": "say", "input": "two", "tests": ["a", "b"]}, {"tests": ["a", "b"]}),
        ({"prompt": "two tea", "system": "be kind"}, {"system": "be kind"}),
        ({"prompt": "two tea"}, {}),
    ],
    ids="+".join,
)
def test_every_column_that_is_not_the_prompt_goes_along(tmp_path, row, columns):
    (found,) = prompts(data(tmp_path, row))
    assert found.columns == columns


def test_a_nested_value_arrives_whole_and_an_absent_one_is_none(tmp_path):
    meta = {"id": 7, "tests": [{"in": "1", "out": None}]}
    found = prompts(data(tmp_path, {"prompt": "a", "meta": meta}, {"prompt": "b"}))
    assert [row.columns for row in found] == [{"meta": meta}, {"meta": None}]


def test_a_mapped_column_goes_along_under_its_role_and_the_prompts_own_does_not(tmp_path):
    row = {"q": "two tea", "gold": "2", "rest": 1, "kind": "be kind"}
    columns = {"prompt": "q", "answer": "gold", "system": "kind"}
    (found,) = prompts(data(tmp_path, row, columns=columns))
    assert found.columns == {"answer": "2", "rest": 1}


def test_every_row_of_a_mixture_keeps_its_own_columns(tmp_path):
    rows = [{"prompt": f"{i} tea", "answer": i} for i in range(20)]
    part = {"data": {"name": "files", "path": data(tmp_path, *rows).path}}
    found = prompts(MixedDataConfig.model_validate({"parts": [part, part], "seed": 3}))
    assert len(found) == 40
    assert all(row.prompt[0]["content"] == f"{row.columns['answer']} tea" for row in found)
    assert [row.columns["answer"] for row in found[:20]] != list(range(20))  # they were shuffled


def test_the_cafe_says_nothing_beside_its_orders():
    assert all(row.columns == {} for row in prompts(CafeDataConfig(size=3)))


def test_what_json_has_no_word_for_stays_behind_and_the_log_says_so(tmp_path, caplog):
    table = {
        "prompt": ["a", "b"],
        "at": [datetime(2026, 1, 1), None],
        "raw": [b"x", b"y"],
        "n": [1, 2],
    }
    pa.parquet.write_table(pa.table(table), tmp_path / "data.parquet")
    with caplog.at_level(logging.WARNING):
        found = prompts(FileDataConfig(path=str(tmp_path / "data.parquet")))
    assert [row.columns for row in found] == [{"n": 1}, {"at": None, "n": 2}]
    assert "data.parquet: rewards do not receive at, raw" in caplog.text


def test_columns_stand_on_the_tokenised_prompt_and_cannot_be_changed(tmp_path, tokenizer):
    rows = [{"prompt": "two tea please", "answer": i} for i in (1, 2)]
    rollouts = RolloutConfig(max_tokens=64, max_response_tokens=32)
    found = load_prompts(data(tmp_path, *rows), tokenizer, rollouts)
    assert [p.columns for p in found] == [{"answer": 1}, {"answer": 2}]
    assert found[0].input_ids == found[1].input_ids  # the policy does not see them
    with pytest.raises(TypeError, match="does not support item assignment"):
        found[0].columns["answer"] = 3


def test_rows_that_differ_only_in_columns_are_shown_alike(tmp_path):
    assert repr(PromptRow((ASK,), {"answer": "1"})) == repr(PromptRow((ASK,)))
