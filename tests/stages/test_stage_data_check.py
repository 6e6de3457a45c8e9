"""What the check of a dataset finds."""

import copy

import pytest

from stages.configs.kto_config import KtoConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.sft_config import SftConfig
from stages.data_check import check, datasets_of, marked_text, overlap, tokenizer_of
from stages.files import write_jsonl
from stages.process_reward import ProcessRewardConfig as ProcessConfig
from stages.rejection_sampling import RejectionSamplingConfig as SamplingConfig
from stages.reward_model import RewardModelConfig as RewardConfig
from training_core.data.cafe import rows as cafe_rows
from training_core.errors import ConfigError, DataError
from training_core.types import Example

HERE = "here are two tea ."
TEA = {"prompt": "we take two tea please", "response": HERE}
PIE = {"prompt": "please bring us one pie", "response": "here are one pie ."}


@pytest.fixture
def files(tmp_path):
    """Write rows; return the source that names them."""

    def write(*rows, name="rows", **settings):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        return {"name": "files", "path": str(tmp_path / f"{name}.jsonl"), **settings}

    return write


def checked(tokenizer, config, step="sft", **settings):
    return [check(dataset, tokenizer, **settings) for dataset in datasets_of(step, config)]


def sft(data, max_tokens=99, **settings):
    return SftConfig.model_validate(
        {"data": data, "training": {"max_tokens": max_tokens}, **settings}
    )


def problems(tokenizer, config, **settings):
    return [(p.text, p.stops) for c in checked(tokenizer, config, **settings) for p in c.problems]


def test_held_out_prompts_of_ppo_are_datasets_too(tokenizer, files):
    prompts = [
        {"label": "a", "data": files({"prompt": "two tea"})},
        {"label": "b", "data": files({"prompt": "three tea"}, {"prompt": ""}, name="more")},
    ]
    evaluation = {"prompts": prompts, "exclude": files({"prompt": "one tea"}, name="others")}
    rollouts = {"max_response_tokens": 8, "max_tokens": 40}
    config = {"prompts": files({"prompt": "one pie"}, name="pie"), "rollouts": rollouts}
    plain = PpoConfig.model_validate(config)
    assert [d.name for d in datasets_of("ppo", plain)] == ["ppo.prompts"]
    evaluated = PpoConfig.model_validate({**config, "evaluation": evaluation})
    found = {d.name: d for d in datasets_of("ppo", evaluated)}
    held_out = ["ppo.evaluation.prompts.0.data", "ppo.evaluation.prompts.1.data"]
    assert list(found) == ["ppo.prompts", *held_out, "ppo.evaluation.exclude"]
    assert [d.is_training for d in found.values()] == [True, False, False, False]
    assert {d.max_tokens for d in found.values()} == {32}
    assert any("empty" in p.text for p in check(found[held_out[1]], tokenizer).problems)


def test_a_good_dataset_has_its_numbers_and_no_problem(tokenizer, files):
    (found,) = checked(tokenizer, sft(files(TEA, PIE)))
    assert found.problems == []
    # <s> <user> 5 words <assistant> = 8, then 5 words and </s>: 14; both rows are alike
    assert found.numbers == {
        "rows": "2",
        "tokens median": "14",
        "tokens p90": "14",
        "tokens p99": "14",
        "tokens max": "14",
        "over 99": "0",
        "trained": "42.9%",  # 6 of 14
    }
    assert [len(example) for _, example in found.examples] == [14, 14]


def test_it_looks_at_the_first_rows_and_shows_as_many_as_asked(tokenizer, files):
    (found,) = checked(tokenizer, sft(files(TEA, PIE)), first_rows=1, num_examples=0)
    assert found.rows == 1
    assert found.examples == []


def test_copies_empty_prompts_and_rows_over_the_limit_are_noted(tokenizer, files):
    empty = {"prompt": " ", "response": "one tea"}
    found = problems(tokenizer, sft(files(TEA, TEA, TEA, empty), max_tokens=13))
    assert found == [
        ("2 rows are exact copies of another row", False),
        ("1 rows have an empty prompt", False),
        ("3 of 4 rows are longer than 13 tokens and are dropped, never cut", False),
    ]


def test_a_dataset_of_which_nothing_fits_stops_the_step(tokenizer, files):
    found = problems(tokenizer, sft(files(TEA), max_tokens=13))
    assert found == [("1 of 1 rows are longer than 13 tokens and are dropped, never cut", True)]


def test_a_response_without_its_end_is_noted(tokenizer, files):
    found = problems(tokenizer, sft(files(TEA, {**PIE, "finished": False})))
    assert found == [("1 sequences do not end with the end token </s>", False)]


def test_bad_rows_stop_the_step_unless_they_are_dropped(tokenizer, files):
    rows = [TEA, {"prompt": "a", "response": ""}, {"prompt": "b", "response": None}]
    ((text, stops),) = problems(tokenizer, sft(files(*rows)))
    assert stops
    assert text.startswith("2 bad rows stop the step; the first: rows.jsonl, row 2, field")
    ((text, stops),) = problems(tokenizer, sft(files(*rows, skip_bad_rows=True)))
    assert not stops
    assert text.startswith("2 bad rows are dropped; the first")


def test_a_source_that_cannot_be_read_stops_the_step(tokenizer, files):
    ((text, stops),) = problems(tokenizer, sft(files({"x": "y"})))
    assert stops
    assert "cannot be read as demonstrations" in text


def test_two_bos_tokens_stop_the_step_and_none_are_noted(tokenizer, files):
    """Family 14: a double bos."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = f"{{{{ bos_token + ' ' }}}}{tokenizer.chat_template}"
    ((text, stops),) = problems(own, sft(files(TEA, PIE)))
    assert stops
    assert text.startswith("2 rows stop the step; the first: prompt of rows.jsonl, row 1 starts")
    own.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "")
    ((text, stops),) = problems(own, sft(files(TEA, PIE)))
    assert not stops
    assert text == "2 sequences do not begin with the tokenizer's bos token <s>"


def test_prompts_of_a_held_out_set_that_are_trained_are_noted(tokenizer, files):
    config = sft(files(TEA, PIE), eval_data=files({**TEA, "response": "no ."}, name="held_out"))
    trained, held_out = checked(tokenizer, config)
    assert (trained.dataset.name, held_out.dataset.name) == ("sft.data", "sft.eval_data")
    found = overlap(held_out, trained)
    assert found is not None
    assert found.text == "1 of 1 different prompts are also in sft.data, word for word"
    assert not found.stops
    other = checked(tokenizer, sft(files({**TEA, "prompt": "else"}, name="other")))
    assert overlap(other[0], trained) is None


def test_pairs_of_equal_texts_are_noted_and_both_sides_are_shown(tokenizer, files):
    rows = [{"prompt": "two", "chosen": "tea", "rejected": word} for word in ("tea", "pie")]
    config = RewardConfig.model_validate({"data": files(*rows)})
    (found,) = checked(tokenizer, config, "reward_model", num_examples=1)
    assert [p.text for p in found.problems] == ["1 pairs have the same text as chosen and rejected"]
    assert [caption for caption, _ in found.examples] == ["chosen", "rejected"]


def test_the_balance_of_labels_is_shown_and_a_one_sided_one_noted(tokenizer, files):
    rows = [{**TEA, "label": True}, {**PIE, "label": False}, {**PIE, "label": True}]
    (found,) = checked(tokenizer, KtoConfig.model_validate({"data": files(*rows)}), "kto")
    assert found.numbers["desirable"] == "66.7%"
    assert found.examples[1][0] == "undesirable"
    config = KtoConfig.model_validate({"data": files(rows[0], rows[2])})
    assert problems(tokenizer, config) == [
        ("every response has the same label; KTO needs both labels", True)
    ]
    found = problems(tokenizer, config, first_rows=1)
    assert [stops for text, stops in found if "same label" in text] == [False]


def test_the_balance_of_step_labels_is_shown(tokenizer, files):
    row = {"prompt": "a", "steps": ["one", "two", "one", "two"]}
    rows = [{**row, "step_labels": [True, True, False, None]}]
    config = ProcessConfig.model_validate({"data": files(*rows)})
    (found,) = checked(tokenizer, config, "process_reward")
    assert found.numbers["right steps"] == "66.7%"
    assert found.numbers["unlabelled steps"] == "25.0%"
    assert found.examples[0][0] == "steps labelled 1, 1, 0, ?"
    assert found.problems == []


def test_prompts_are_measured_against_the_room_that_a_response_leaves(tokenizer, files):
    rollouts = {"max_tokens": 20, "max_response_tokens": 13}
    config = SamplingConfig.model_validate(
        {"prompts": files(TEA, {"prompt": "a"}), "rollouts": rollouts}
    )
    (found,) = checked(tokenizer, config, "rejection_sampling")
    assert found.numbers["over 7"] == "1"  # 8 tokens and 4
    assert "trained" not in found.numbers


def test_texts_are_cut_and_so_never_too_long(tokenizer, files):
    config = sft(files({"text": f"{HERE} {HERE}"}), max_tokens=5, rows="texts")
    (found,) = checked(tokenizer, config)
    assert found.numbers["over 5"] == "0"
    assert [p.text for p in found.problems if "bos" not in p.text] == [
        "2 sequences do not end with the end token </s>"
    ]


def test_it_says_in_which_form_a_file_was_read(tokenizer, files):
    row = {
        "Body": "we take",
        "Question": "two tea please",
        "said": [{"speaker": "bot", "text": HERE}],
    }
    columns = {"prompt": "{Body} {Question}", "response": "said"}
    (found,) = checked(tokenizer, sft(files(row, columns=columns)))
    assert found.forms == ('prompt = "{Body} {Question}" + response = said {speaker, text}',)
    assert checked(tokenizer, sft({"name": "cafe", "size": 2}))[0].forms == ()


def test_files_of_one_form_are_said_once_and_others_too(tokenizer, files):
    paths = [files(TEA, name=name)["path"] for name in "ab"]
    paths.append(files({"question": "one pie", "answer": 3}, name="c")["path"])
    (found,) = checked(tokenizer, sft({"name": "files", "path": paths}))
    assert found.forms == ("prompt + response", "question + answer")


def test_a_dataset_of_ties_stops_the_step_and_some_ties_are_noted(tokenizer, files):
    pair = {"prompt": "a", "response_a": "two tea", "response_b": "one pie"}
    tie, vote = {**pair, "winner": "tie"}, {**pair, "winner": "b"}
    expected = "1 rows have no preferences (the first: rows.jsonl, row 1): a tie, or no two answers"
    for rows, is_stopped in (([tie], True), ([tie, vote], False)):
        config = RewardConfig.model_validate({"data": files(*rows)})
        ((text, stops), *_) = problems(tokenizer, config, step="reward_model")
        assert text.startswith(expected)
        assert stops is is_stopped


def test_each_part_of_a_mixture_is_checked_by_itself(tokenizer, files):
    parts = [{"data": files(TEA)}, {"data": {"name": "cafe", "size": 3}}]
    found = checked(tokenizer, sft({"name": "mixed", "parts": parts}))
    assert [(c.dataset.name, c.rows) for c in found] == [
        ("sft.data.parts.0", 1),
        ("sft.data.parts.1", 3),
    ]


def test_the_marked_text_has_every_token_and_says_which_are_trained(tokenizer):
    ids = tuple(tokenizer("<s> <user> two tea <assistant> here </s>").input_ids)
    pieces = marked_text(tokenizer, Example(ids, (0, 0, 0, 0, 0, 1, 1)))
    assert pieces == [("<s> <user> two tea <assistant>", False), ("here </s>", True)]


# ------------------------------------------- the tokenizer


def test_the_tokenizer_is_the_one_that_sft_makes():
    data = {"name": "cafe", "size": 20}
    config = sft(data, base={"name": "scratch"}, chat_template="Q {} A ")
    tokenizer = tokenizer_of(config)
    words = {w for r in cafe_rows("demonstrations", split="train", size=20, seed=0)
             for m in r["messages"] for w in m["content"].split()}  # fmt: skip
    assert words <= set(tokenizer.get_vocab())
    assert "'Q '" in tokenizer.chat_template


def test_a_tokenizer_that_is_not_there_or_cannot_pad_says_so(tmp_path, tokenizer):
    data = {"name": "cafe", "size": 20}
    with pytest.raises(DataError, match="expected the folder of a Hugging Face model, found n"):
        tokenizer_of(sft(data, base={"name": "local", "path": str(tmp_path / "none")}))
    own = copy.deepcopy(tokenizer)
    own.pad_token = own.eos_token
    own.save_pretrained(tmp_path / "own")
    with pytest.raises(ConfigError, match="pad_token that is not its eos_token"):
        tokenizer_of(sft(data, base={"name": "local", "path": str(tmp_path / "own")}))
