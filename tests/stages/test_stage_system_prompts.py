"""A mapped column `system` begins the prompt of every kind of row, whatever its shape."""

from __future__ import annotations

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import demonstrations, preferences, prompts, unpaired_responses
from stages.files import write_jsonl
from training_core.errors import DataError

SYSTEM = {"role": "system", "content": "be kind"}
Q = {"role": "user", "content": "two tea"}
A = {"role": "assistant", "content": "yes"}
B = {"role": "assistant", "content": "no"}

ROWS = [
    (prompts, {"prompt": "two tea"}),
    (prompts, {"prompt": [Q]}),
    (prompts, {"messages": [Q, A]}),
    (prompts, {"question": "two tea"}),
    (prompts, {"context_messages": [Q]}),
    (demonstrations, {"prompt": "two tea", "response": "yes"}),
    (demonstrations, {"messages": [Q, A]}),
    (demonstrations, {"conversations": [Q, A]}),
    (preferences, {"prompt": "two tea", "chosen": "yes", "rejected": "no"}),
    (preferences, {"prompt": "two tea", "chosen": [Q, A], "rejected": [Q, B]}),
    (preferences, {"chosen": [Q, A], "rejected": [Q, B]}),
    (preferences, {"chosen": "two tea yes", "rejected": "two tea no"}),
    (unpaired_responses, {"prompt": "two tea", "response": "yes", "label": True}),
    (unpaired_responses, {"messages": [Q, A], "label": True}),
]


def source(folder, row):
    write_jsonl(folder / "rows.jsonl", [row | {"sys": "be kind"}])
    return FileDataConfig(path=str(folder / "rows.jsonl"), columns={"system": "sys"})


@pytest.mark.parametrize(("load", "row"), ROWS)
def test_the_prompt_begins_with_it_once(tmp_path, load, row):
    (found,) = load(source(tmp_path, row))
    first, second = found.prompt
    assert first == SYSTEM
    assert (second["role"], second["content"].strip()) == ("user", "two tea")


def test_messages_that_begin_with_the_same_one_are_left_as_they_are(tmp_path):
    (found,) = prompts(source(tmp_path, {"messages": [SYSTEM, Q]}))
    assert found.prompt == (SYSTEM, Q)


def test_a_different_one_in_the_messages_is_an_error_that_shows_both(tmp_path):
    other = {"role": "system", "content": "be brief"}
    with pytest.raises(DataError) as error:
        demonstrations(source(tmp_path, {"messages": [other, Q, A]}))
    assert str(error.value).endswith(
        "rows.jsonl, row 1, field 'sys': expected the system prompt of the messages, 'be brief', "
        "found 'be kind'"
    )
