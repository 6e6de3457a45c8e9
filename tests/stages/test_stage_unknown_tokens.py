"""Text that the tokenizer does not know is counted, and too much of it stops a stage."""

import copy

import pytest

from stages.batches.encoding import (
    encode_demonstrations,
    encode_pairs,
    encode_solutions,
    encode_texts,
    encode_unpaired,
)
from stages.batches.unknown_tokens import count_unknown
from stages.configs.data_config import FileDataConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.sft_config import SftConfig
from stages.data_check import check, datasets_of
from stages.datasets import Demonstration, Preference, Solution, UnpairedResponse
from stages.files import write_jsonl
from stages.sampling.rollouts import load_prompts
from training_core.errors import DataError

ASK = ({"role": "user", "content": "two tea please"},)
ODD = ({"role": "user", "content": "two ☕ please"},)
HERE = "here are two tea ."
THERE = "here are two cake ."
# <s> <user> two tea please <assistant> here are two tea . </s>: 12 tokens
ROWS = {
    "demonstrations": (encode_demonstrations, [Demonstration(ASK, HERE), Demonstration(ODD, HERE)]),
    "pairs": (encode_pairs, [Preference(ASK, HERE, THERE), Preference(ODD, HERE, THERE)]),
    "unpaired": (
        encode_unpaired,
        [UnpairedResponse(ASK, HERE, True), UnpairedResponse(ODD, HERE, False)],
    ),
}
SAID = r"of 24 tokens \(4\.2%\) are unknown to the tokenizer, e\.g\. of '☕'; the limit `unknown_li"


@pytest.mark.parametrize("kind", ROWS)
def test_too_many_unknown_tokens_stop_a_stage_with_examples(tokenizer, kind, caplog):
    encode, rows = ROWS[kind]
    said = SAID if kind != "pairs" else SAID.replace("24", "48")  # both sides have the prompt
    with pytest.raises(DataError, match=said):  # 1 of 24
        encode(tokenizer, rows, max_tokens=99, unknown_limit=0.04)
    assert len(encode(tokenizer, rows, max_tokens=99, unknown_limit=0.05)) == 2
    assert "are unknown to the tokenizer, e.g. of '☕'" in caplog.text
    caplog.clear()
    assert len(encode(tokenizer, rows[:1], max_tokens=99, unknown_limit=0.0)) == 1
    assert caplog.text == ""


def test_texts_steps_and_prompts_are_counted_too(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"2 of 5 tokens \(40\.0%\).*'3\+4', '=7'"):
        encode_texts(tokenizer, ["two 3+4 =7"], max_tokens=9, unknown_limit=0.3)
    solution = Solution(ASK, ("two", "☕"), (1.0, 0.0))
    with pytest.raises(DataError, match=r"1 of 8 tokens \(12\.5%\).*'☕'"):
        encode_solutions(tokenizer, [solution], max_tokens=99, unknown_limit=0.1)
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "two ☕ please"}])
    data = FileDataConfig(path=str(tmp_path / "rows.jsonl"))
    rollouts = RolloutConfig(max_tokens=64, max_response_tokens=32)
    with pytest.raises(DataError, match=r"1 of 6 tokens \(16\.7%\).*`unknown_limit` is 2\.0%"):
        load_prompts(data, tokenizer, rollouts)
    assert load_prompts(data, tokenizer, rollouts.model_copy(update={"unknown_limit": 0.2}))


def test_the_check_of_the_data_counts_them_in_held_out_rows(tokenizer, tmp_path):
    for name, prompt in (("train", "two tea please"), ("heldout", "two ☕ please")):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"prompt": prompt, "response": HERE}])
    files = {
        field: {"name": "files", "path": str(tmp_path / f"{name}.jsonl")}
        for field, name in (("data", "train"), ("eval_data", "heldout"))
    }
    train, heldout = [check(d, tokenizer) for d in datasets_of("sft", SftConfig(**files))]
    assert "unknown" not in train.numbers
    assert heldout.numbers["unknown"] == "8.3%"
    said = "1 of 12 tokens (8.3%) are unknown to the tokenizer, e.g. of '☕'"
    assert [(p.text, p.stops) for p in heldout.problems] == [(said, True)]
    lenient = SftConfig.model_validate({**files, "training": {"unknown_limit": 0.1}})
    found = [check(d, tokenizer) for d in datasets_of("sft", lenient)][1]
    assert [(p.text, p.stops) for p in found.problems] == [(said, False)]


def test_a_tokenizer_whose_unknown_token_is_its_end_token_knows_everything(tokenizer):
    """GPT-2 has one special token for all purposes, and every byte."""
    own = copy.deepcopy(tokenizer)
    own.unk_token = own.eos_token
    assert count_unknown(own, ["a"], [(1, own.eos_token_id)]).count == 0
    own.unk_token = own.pad_token  # as in TinyStories-656K: a row holds no padding
    assert count_unknown(own, ["a"], [(1, own.pad_token_id)]).count == 1
    own.unk_token = None
    assert count_unknown(own, ["a"], [(1, 3)]).count == 0


def test_a_dataset_of_which_every_row_is_too_long_says_so(tokenizer):
    with pytest.raises(DataError, match="each of the 2 rows is longer than max_tokens=9; raise it"):
        encode_demonstrations(tokenizer, ROWS["demonstrations"][1], max_tokens=9)
    assert encode_demonstrations(tokenizer, [], max_tokens=9) == []
