"""Rows whose values mean something else than they seem to, and columns that contradict them."""

import copy
import logging
from dataclasses import replace

import pytest
from datasets import Dataset

from stages import kto, process_reward, reward_model
from stages.batches.encoding import (
    encode_demonstrations,
    encode_pairs,
    encode_solutions,
    encode_unpaired,
)
from stages.configs.data_config import FileDataConfig
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sampling_config import RolloutConfig
from stages.datasets import (
    UnpairedResponse,
    demonstrations,
    preferences,
    read,
    solutions,
    unpaired_responses,
)
from stages.datasets.kinds import PREFERENCES
from stages.datasets.kinds import unpaired_responses as ratings
from stages.files import write_jsonl
from stages.sampling.rollouts import load_prompts
from training_core.data.templates import chat_template
from training_core.errors import DataError

PAIR = {"prompt": "two tea", "chosen": "yes", "rejected": "no"}
RATED = {"prompt": "two tea", "response": "yes"}


def say(role, text="x"):
    return {"role": role, "content": text}


@pytest.fixture
def source(tmp_path):
    def write(*rows, **settings):
        write_jsonl(tmp_path / "rows.jsonl", rows)
        return FileDataConfig(path=str(tmp_path / "rows.jsonl"), **settings)

    return write


@pytest.fixture
def parquet(tmp_path):
    """JSON has no NaN."""

    def write(*rows, **settings):
        Dataset.from_list(list(rows)).to_parquet(tmp_path / "rows.parquet")
        return FileDataConfig(path=str(tmp_path / "rows.parquet"), **settings)

    return write


def test_a_negative_margin_says_that_the_rejected_response_won(source):
    expected = r"rows\.jsonl, row 2, field 'margin': expected a margin of at least 0 .*found '-1"
    with pytest.raises(DataError, match=expected):
        preferences(source({**PAIR, "margin": 0.0}, {**PAIR, "margin": -1.0}))


@pytest.mark.parametrize("value", ["false", "true", "no", 2, -1, 0.5])
def test_a_flag_that_is_no_truth_value_is_refused(source, value):
    expected = r"row 1, field 'finished': expected true, false, 1 or 0, found"
    with pytest.raises(DataError, match=expected):
        demonstrations(source({**RATED, "finished": value}))


@pytest.mark.parametrize(("value", "is_finished"), [(True, True), (False, False), (0, False)])
def test_a_flag_is_a_truth_value(source, value, is_finished):
    (row,) = demonstrations(source({**RATED, "finished": value}))
    assert row.is_finished is is_finished


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(parquet, value):
    expected = r"rows\.parquet, row 1, field '{}': expected a finite number, found"
    with pytest.raises(DataError, match=expected.format("score")):
        unpaired_responses(parquet({**RATED, "score": value}), threshold=1.0)
    with pytest.raises(DataError, match=expected.format("reward")):
        demonstrations(parquet({**RATED, "reward": value}))
    with pytest.raises(DataError, match=expected.format("margin")):
        preferences(parquet({**PAIR, "margin": value}))


# ------------------------------------------- turns


SYSTEM_LATE = [say("user"), say("system"), say("user"), say("assistant", "yes")]
ANSWER_FIRST = [say("assistant"), say("user"), say("assistant", "yes")]
TWO_USERS = [say("user"), say("user"), say("assistant", "yes")]
NORMAL = [say("system"), say("user"), say("assistant", "yes")]
ORDERS = {
    "a system message after another message": SYSTEM_LATE,
    "an assistant's message first": ANSWER_FIRST,
    "two messages of the user in a row": TWO_USERS,
}


@pytest.mark.parametrize(("order", "messages"), ORDERS.items(), ids=["system", "answer", "users"])
def test_an_unusual_order_of_turns_is_named_and_the_template_decides(
    source, tokenizer, caplog, order, messages
):
    data = source({"messages": NORMAL}, {"messages": messages})
    with caplog.at_level(logging.WARNING):
        rows = demonstrations(data)
    assert f"1 rows have {order} (the first: rows.jsonl, row 2)" in caplog.text
    assert len(encode_demonstrations(tokenizer, rows, max_tokens=99)) == 2  # like ChatML
    strict = copied(tokenizer, chat_template("gemma"))
    with pytest.raises(DataError, match=r"prompt of rows\.jsonl, row 2: the chat template refuses"):
        encode_demonstrations(strict, rows, max_tokens=99)
    plain = copied(tokenizer, chat_template("User: {}\nAssistant: "))
    with pytest.raises(DataError, match=r"prompt of rows\.jsonl, row 2: the chat template refuses"):
        encode_demonstrations(plain, rows, max_tokens=99, train_on="last_turn")


def copied(tokenizer, template):

    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return own


def test_every_kind_of_row_is_named_by_its_place_if_the_template_refuses_it(source, tokenizer):
    strict = copied(tokenizer, "{{ raise_exception('never') }}")
    pairs = preferences(source(PAIR))
    with pytest.raises(DataError, match=r"prompt of rows\.jsonl, row 1: the chat template refuses"):
        encode_pairs(strict, pairs, max_tokens=99)
    steps = solutions(source({"prompt": "a", "steps": ["b"], "labels": [True]}))
    with pytest.raises(DataError, match=r"prompt of rows\.jsonl, row 1: the chat template refuses"):
        encode_solutions(strict, steps, max_tokens=99)
    rollouts = RolloutConfig(max_tokens=64, max_response_tokens=32)
    with pytest.raises(DataError, match=r"prompt of rows\.jsonl, row 1: the chat template refuses"):
        load_prompts(source({"prompt": "a"}), strict, rollouts)


def test_usual_conversations_are_not_noted(source, caplog):
    tools = [say("user"), say("assistant"), say("tool"), say("tool"), say("assistant", "yes")]
    demonstrations(source({"messages": NORMAL}, {"messages": tools}))
    assert caplog.text == ""


# ------------------------------------------- labels that nobody uses


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("label", [1, 2], "by its name"),
        ("winner_model", ["x", "y"], "by its name"),
        ("human-preferences", ["x", "y"], "by its name"),
        ("gpt", ["output_1", "output_2"], "by its values output_1, output_2"),
        ("gpt", ["A", "tie"], "by its values a, tie"),
    ],
)
def test_a_column_that_may_say_which_response_won_is_named(source, caplog, column, values, why):
    rows = [{"prompt": "a", "output_1": "b", "output_2": "c", column: v} for v in values]
    data = source(*rows, columns={"chosen": "output_1", "rejected": "output_2"})
    note = f"rows.jsonl: column '{column}' looks like a label ({why}) and is not used"
    assert any(found.startswith(note) for found in read(PREFERENCES, data).notes)
    with caplog.at_level(logging.WARNING):
        preferences(data)
    assert note in caplog.text


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("chosen_score", [1, 2]),  # of the chosen response
        ("topic", ["food", "drink"]),
        ("source", ["a", "books"]),
        ("turns", [1, 2]),
        ("labelled_at", ["x", "y"]),
    ],
)
def test_other_columns_are_not(source, column, values):
    data = source(*({**PAIR, column: value} for value in values))
    assert read(PREFERENCES, data).notes == []


def test_a_label_that_is_used_is_no_stranger_and_a_score_beside_it_is(source):
    data = source({**RATED, "label": True, "score": 3.0})
    assert [n.partition(" (")[0] for n in read(ratings(None), data).notes] == [
        "rows.jsonl: column 'score' looks like a label"
    ]
    assert read(ratings(None), source({**RATED, "label": True})).notes == []


# ------------------------------------------- what is left to train on


def test_responses_of_one_kind_are_refused(tokenizer):
    rows = [UnpairedResponse((say("user", "two tea"),), "yes", True)] * 2
    examples = encode_unpaired(tokenizer, rows, max_tokens=99)
    with pytest.raises(DataError, match="all 2 responses are desirable, and KTO needs both kinds"):
        kto._with_both_labels(examples)
    both = [*examples, replace(examples[0], is_desirable=False)]
    assert kto._with_both_labels(both) == both


def test_a_heldout_fraction_that_leaves_nothing_is_named(source, tokenizer):
    data = {"name": "cafe", "size": 20}
    config = RewardModelConfig.model_validate({"data": data, "heldout_fraction": 0.99})
    with pytest.raises(DataError, match=r"heldout_fraction=0\.99 .* leaves none to train on"):
        reward_model.pairs_of(config, {}, tokenizer)
    step = {"prompt": "two tea", "steps": ["two"], "labels": [True]}
    given = source(step, step).model_dump()
    settings = {"data": given, "heldout_fraction": 0.9, "training": {"unknown_limit": 1.0}}
    config = ProcessRewardConfig.model_validate(settings)
    with pytest.raises(DataError, match=r"heldout_fraction=0\.9 .* leaves none to train on"):
        process_reward.solutions_of(config, {}, tokenizer)
