"""Public datasets are read with at most `columns`, and without a script."""

from __future__ import annotations

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import (
    demonstrations,
    preferences,
    prompts,
    solutions,
    texts,
    unpaired_responses,
)
from stages.files import write_jsonl
from training_core.errors import DataError

TALK = [{"speaker": "USER", "text": "Two tea."}, {"speaker": "ASSISTANT", "text": "Yes."}]
SIDES = {"first": "output_1", "second": "output_2", "winner": "label"}
AS_PUBLISHED = {
    "SVAMP": (
        demonstrations,
        {"ID": "c-1", "Body": "A box has 3 pens.", "Question": "And two?", "Answer": 6.0},
        {"prompt": "{Body} {Question}", "response": "Answer"},
    ),
    "MAWPS": (
        demonstrations,
        {"Question": "3 + 3 pens?", "Numbers": "3 3", "Equation": "+ 3 3", "Answer": 6},
        {"question": "Question", "answer": "Answer"},
    ),
    "AQuA": (
        prompts,
        {"question": "3 + 3?", "options": ["A)6", "B)7"], "rationale": "…", "correct": "A"},
        {"prompt": "{question}\n{options}"},
    ),
    "GSM8K": (demonstrations, {"question": "3 + 3?", "answer": "It is 6.\n#### 6"}, {}),
    "Taskmaster": (
        demonstrations,
        {"conversation_id": "d-1", "instruction_id": "tea-1", "utterances": TALK},
        {"messages": "utterances"},
    ),
    "OpenAssistant": (
        preferences,
        {
            "message_tree_id": "t-1",
            "prompt": {
                "text": "A colour?",
                "role": "prompter",
                "replies": [
                    {"text": text, "role": "assistant", "rank": rank, "replies": []}
                    for rank, text in enumerate(("Blue.", "No."))
                ],
            },
        },
        {},
    ),
    "LLMBar": (
        preferences,
        {"input": "A colour?", "output_1": "No.", "output_2": "Blue.", "label": 2},
        SIDES,
    ),
    "Chatbot Arena": (
        preferences,
        {
            "question_id": "q-1",
            "conversation_a": [
                {"role": "user", "content": "A colour?"},
                {"role": "assistant", "content": "Blue."},
            ],
            "conversation_b": [
                {"role": "user", "content": "A colour?"},
                {"role": "assistant", "content": "No."},
            ],
            "winner": "model_a",
        },
        {},
    ),
    "SHP": (
        preferences,
        {"history": "A colour?", "human_ref_A": "Blue.", "human_ref_B": "No.", "labels": 1},
        {
            "prompt": "history",
            "first": "human_ref_A",
            "second": "human_ref_B",
            "first_wins": "labels",
        },
    ),
    "MR-GSM8K": (
        solutions,
        {
            "question": "1 + 2?",
            "model_output_steps": ["1 + 2", "= 4"],
            "model_output_solution_first_error_step": "2",
        },
        {
            "steps": "model_output_steps",
            "first_error_number": "model_output_solution_first_error_step",
        },
    ),
    "ProcessBench": (
        solutions,
        {"id": "g-1", "problem": "1 + 2?", "steps": ["1 + 2", "= 4"], "label": 1},
        {"first_error_index": "label"},
    ),
    "HelpSteer": (
        lambda data: unpaired_responses(data, threshold=3),
        {"prompt": "A colour?", "response": "Blue.", "helpfulness": 4, "correctness": 3},
        {"score": "helpfulness"},
    ),
}
"""Rows in the columns of public datasets -> kind, row, `columns`."""

AT_HAND = {
    "HH-RLHF": (preferences, "preference/hh_rlhf_harmless_base.test", {}),
    "Taskmaster dialogues": (demonstrations, "instruction/taskmaster_tm4_coffee.test", {}),
    "Taskmaster rewards": (unpaired_responses, "reward/taskmaster_tm4_coffee_unpaired", {}),
    "P3": (demonstrations, "instruction/p3_t0_short.test", {}),
    "OpenAssistant": (demonstrations, "instruction/oasst_en100_best_path", {}),
    "GSM8K": (
        demonstrations,
        "verifiable/gsm8k.test",
        {"prompt": "prompt", "response": "solution"},
    ),
    "MATH": (demonstrations, "verifiable/math500", {"response": "solution"}),
    "HumanEval": (demonstrations, "verifiable/humaneval", {"response": "canonical_solution"}),
    "MBPP": (
        demonstrations,
        "verifiable/mbpp",
        {"prompt": "{text}\nYour code should pass these tests:\n{test_list}", "response": "code"},
    ),
    "BIG-Bench Mistake": (
        solutions,
        "process/bigbench_mistake",
        {"first_error_index": "mistake_index"},
    ),
    "VADER": (texts, "reward/vader_human_rated_sentences", {}),
    "TinyStories": (texts, "text/tinystories_v2_gpt4.test", {}),
}
"""Public datasets of the shared data -> kind, file, `columns`."""


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_a_row_in_the_columns_of_a_public_dataset_is_read(tmp_path, name):
    load, row, columns = AS_PUBLISHED[name]
    write_jsonl(tmp_path / "rows.jsonl", [row])
    assert len(load(FileDataConfig(path=str(tmp_path / "rows.jsonl"), columns=columns))) == 1


def test_what_the_reward_needs_is_read_with_the_prompt(tmp_path):
    _, row, columns = AS_PUBLISHED["AQuA"]
    write_jsonl(tmp_path / "rows.jsonl", [row])
    (found,) = prompts(FileDataConfig(path=str(tmp_path / "rows.jsonl"), columns=columns))
    assert found.prompt[0]["content"] == "3 + 3?\nA)6\nB)7"
    assert found.columns == row


def test_public_datasets_are_read_as_they_are(shared_data):
    read = {}
    for name, (load, file, columns) in AT_HAND.items():
        data = FileDataConfig(
            path=str(shared_data / f"{file}.jsonl.gz"), columns=columns, limit=200
        )
        try:
            read[name] = len(load(data))
        except DataError as error:
            read[name] = str(error)
    few = {"OpenAssistant": 100, "HumanEval": 164, "TinyStories": 150}
    assert read == {name: few.get(name, 200) for name in AT_HAND}


def test_the_joined_prompt_of_mbpp_is_the_one_that_its_authors_use(shared_data):
    path = str(shared_data / "verifiable/mbpp.jsonl.gz")
    joined = demonstrations(FileDataConfig(path=path, columns=AT_HAND["MBPP"][2]))
    known = demonstrations(FileDataConfig(path=path, columns={"response": "code"}))
    assert joined == known


def test_first_wrong_steps_are_the_labels_that_were_derived_from_them(shared_data):
    path = str(shared_data / "process/bigbench_mistake.jsonl.gz")
    found = solutions(FileDataConfig(path=path, columns=AT_HAND["BIG-Bench Mistake"][2]))
    assert found == solutions(FileDataConfig(path=path))
