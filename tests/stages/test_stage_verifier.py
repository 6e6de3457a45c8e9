"""The verifier that docs/rewards.md shows, on real questions and in a real stage."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stages.configs.data_config import FileDataConfig
from stages.configs.reward_config import PythonRewardConfig
from stages.datasets import prompts
from stages.files import read_jsonl, write_jsonl
from stages.runtime.exit_codes import ExitCode
from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from stages.sampling.rewards import build_reward
from tests.http_server import closed_port
from training_core.rewards.reward import Unscored
from training_core.types import Prompt, Rollout

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"
EIGHTEEN = {"solution": "She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18"}
THOUSANDS = {"solution": "#### 1,200"}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory) -> str:
    """The page's file, as a preset names it."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path_factory.mktemp("rewards") / "gsm8k.py"
    path.write_text(text)
    return f"{path}:reward"


@pytest.fixture(scope="module")
def judge(verifier):
    return build_reward(PythonRewardConfig(path=verifier), {})


def rollout(columns: Mapping[str, Any], text: str) -> Rollout:
    prompt = Prompt("1", (), "", (1,), MappingProxyType(columns))
    return Rollout(prompt, (2,), (-1.0,), text, is_finished=True, policy_version=0)


@pytest.mark.parametrize(
    ("columns", "text", "expected"),
    [
        (EIGHTEEN, "16 - 3 - 4 = 9, and 9 * 2 = 18\n#### 18", 1.0),
        (EIGHTEEN, "She earns $18.00.", 1.0),
        (EIGHTEEN, "A: 9", 0.0),
        (EIGHTEEN, "18 eggs at 2 dollars are 36", 0.0),  # the last number counts
        (EIGHTEEN, "-18", 0.0),
        (EIGHTEEN, "I do not know.", 0.0),
        (EIGHTEEN, "", 0.0),
        (THOUSANDS, "1200", 1.0),
        (THOUSANDS, "it is 1,200.", 1.0),
        (THOUSANDS, "200", 0.0),
        ({"solution": "nobody knows"}, "18", Unscored("the solution has no number after ####")),
        ({"solution": "it is 18"}, "18", Unscored("the solution has no number after ####")),
    ],
)
def test_hand_written_responses_are_judged_right(judge, columns, text, expected):
    assert judge([rollout(columns, text)]) == [expected]


def test_every_solution_of_gsm8k_earns_one_and_the_neighbours_answer_only_by_chance(
    judge, shared_data
):
    rows = prompts(FileDataConfig(path=str(shared_data / "verifiable/gsm8k.test.jsonl.gz")))
    assert len(rows) == 1319
    own = judge([rollout(row.columns, row.columns["solution"]) for row in rows])
    assert own == [1.0] * 1319
    neighbours = list(pairwise(rows))
    others = judge([rollout(row.columns, other.columns["answer"]) for row, other in neighbours])
    equal = [float(row.columns["answer"] == other.columns["answer"]) for row, other in neighbours]
    assert others == equal
    assert 0 < sum(equal) < 50


def test_the_verdicts_on_models_solutions_are_those_of_the_publisher(judge, shared_data):
    with gzip.open(shared_data / "reward/gsm8k_model_solutions_unpaired.jsonl.gz", "rt") as file:
        solved = [json.loads(line) for line in file]
    known = prompts(FileDataConfig(path=str(shared_data / "verifiable/gsm8k.test.jsonl.gz")))
    by_question = {row.prompt[0]["content"]: row.columns for row in known}
    columns = [by_question[row["prompt"][0]["content"]] for row in solved]
    texts = [row["completion"][0]["content"] for row in solved]
    verdicts = judge([rollout(c, t) for c, t in zip(columns, texts, strict=True)])
    assert len(verdicts) == 5276
    assert verdicts == [float(row["label"]) for row in solved]


# ------------------------------------------- in a stage

QUESTIONS = 8
SHORT = 160  # characters; the questions are learned by heart, word by word
ROLLOUTS = {"engine": "transformers", "max_response_tokens": 8, "max_tokens": 64}


@dataclass(frozen=True)
class Pupil:
    """A policy that has learned the answers of a few questions by heart."""

    store: Store
    policy: Manifest
    rows: list[dict[str, Any]]

    def prompts(self, path: Path, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The questions, each with one of the columns, as a preset names them."""
        asked = [{"prompt": row["prompt"]} for row in self.rows]
        write_jsonl(path, [{**p, **c} for p, c in zip(asked, columns, strict=True)])
        return {"name": "files", "path": str(path)}


@pytest.fixture(scope="module")
def pupil(finish, shared_data, tmp_path_factory) -> Pupil:
    folder = tmp_path_factory.mktemp("pupil")
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(shared_data / "verifiable/gsm8k.train.jsonl.gz", "rt") as file:
        for row in map(json.loads, file):
            if len(row["question"]) < SHORT:
                found.setdefault(row["answer"], row)  # no two with one answer
    rows = list(found.values())[:QUESTIONS]
    learned = [{"prompt": r["prompt"], "response": f"the answer is {r['answer']}"} for r in rows]
    write_jsonl(folder / "learned.jsonl", learned)
    sft = {
        "base": {
            "name": "scratch",
            "hidden_size": 32,
            "num_layers": 1,
            "num_heads": 2,
            "intermediate_size": 64,
        },
        "data": {"name": "files", "path": str(folder / "learned.jsonl")},
        "chat_template": "roles",
        "training": {
            "epochs": 200,
            "batch_size": 8,
            "max_tokens": 96,
            "optimizer": {"learning_rate": 1e-2},
        },
    }
    store = Store(folder / "store")
    return Pupil(store, finish(store, "sft", sft), rows)


def sampling(prompts: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        "prompts": prompts,
        "reward": {"name": "python", "path": path, "arguments": {"wrong": -1.0}},
        "rollouts": ROLLOUTS,
        "group_size": 4,
    }


def solutions_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"solution": row["solution"]} for row in rows]


def test_a_stage_keeps_what_the_verifier_finds_right_by_the_columns_of_each_row(
    pupil, finish, verifier, tmp_path
):
    # The first three questions come with their own solution, the other five with another one's.
    own, others = pupil.rows[:3], [*pupil.rows[4:], pupil.rows[3]]
    prompts = pupil.prompts(tmp_path / "asked.jsonl", solutions_of([*own, *others]))
    config = {**sampling(prompts, verifier), "select": {"name": "threshold", "min_reward": 1.0}}
    made = finish(pupil.store, "rejection_sampling", config, {"policy": pupil.policy})
    assert read_jsonl(pupil.store.artifact_dir(made) / "data.jsonl") == [
        {
            "prompt": row["prompt"],
            "response": f"the answer is {row['answer']}",
            "finished": True,
            "reward": 1.0,
        }
        for row in own
    ]
    # (3 * 1 + 5 * -1) / 8 = -0.25, since the pupil has learned all of them by heart.
    assert made.metrics["mean_reward"] == pytest.approx(-0.25)
    assert made.metrics["prompts_kept"] == 3


def test_a_changed_function_runs_the_stage_again_and_an_unchanged_one_does_not(
    pupil, finish, verifier, tmp_path
):
    prompts = pupil.prompts(tmp_path / "asked.jsonl", solutions_of(pupil.rows))
    own = tmp_path / "own.py"
    own.write_text(Path(verifier.partition(":")[0]).read_text())
    config = {**sampling(prompts, f"{own}:reward"), "select": {"name": "every"}}
    parents = {"policy": pupil.policy}
    first = finish(pupil.store, "rejection_sampling", config, parents)
    assert finish(pupil.store, "rejection_sampling", config, parents) == first
    own.write_text(own.read_text().replace("return 1.0 if", "return 3.0 if"))
    again = finish(pupil.store, "rejection_sampling", config, parents)
    assert again.key != first.key
    assert (first.metrics["mean_reward"], again.metrics["mean_reward"]) == (1.0, 3.0)


def test_the_values_of_all_parts_are_in_the_rows_and_the_metrics_of_a_stage(
    pupil, finish, verifier, tmp_path
):
    # The pupil has learned all answers by heart, and half of the questions have the right one.
    rows = [
        {**solution, "gold": row["answer"] if place % 2 else "no number"}
        for place, (solution, row) in enumerate(
            zip(solutions_of(pupil.rows), pupil.rows, strict=True)
        )
    ]
    prompts = pupil.prompts(tmp_path / "asked.jsonl", rows)
    parts = [
        {"weight": 2.0, "label": "right", "reward": {"name": "python", "path": verifier}},
        {
            "weight": -1.0,
            "reward": {"name": "answer", "column": "gold", "pattern": r"answer is (.+)"},
        },
    ]
    config = {
        **sampling(prompts, verifier),
        "reward": {"name": "weighted", "parts": parts},
        "select": {"name": "best"},
    }
    made = finish(pupil.store, "rejection_sampling", config, {"policy": pupil.policy})
    kept = read_jsonl(pupil.store.artifact_dir(made) / "data.jsonl")
    assert [(row["reward"], row["components"]) for row in kept] == [
        (1.0, {"right": 1.0, "answer": 1.0}) if place % 2 else (2.0, {"right": 1.0, "answer": 0.0})
        for place in range(QUESTIONS)
    ]
    assert made.metrics["component_right"] == 1.0
    assert made.metrics["component_answer"] == 0.5
    assert made.metrics["mean_reward"] == 1.5


def failure(
    pupil: Pupil,
    write_request: Callable[..., Path],
    run_here: Callable[[Path], int],
    config: Mapping[str, Any],
) -> str:
    request = write_request(pupil.store, "rejection_sampling", config, {"policy": pupil.policy})
    assert run_here(request) == ExitCode.BAD_INPUT
    return json.loads(request.with_name("error.json").read_text())["message"]


def test_a_stage_whose_columns_are_missing_stops_and_shows_the_first_exception(
    pupil, write_request, run_here, verifier, tmp_path
):
    prompts = pupil.prompts(tmp_path / "asked.jsonl", [{"level": 1}] * QUESTIONS)
    said = failure(pupil, write_request, run_here, sampling(prompts, verifier))
    assert said.startswith("32 of 32 rollouts have no reward, the largest allowed share is 0.02")
    source = Path(verifier.partition(":")[0]).read_text().splitlines()
    (line,) = (i for i, text in enumerate(source, 1) if 'columns["solution"]' in text)
    reason = f"KeyError: 'solution' (gsm8k.py, line {line})"
    assert f"32x {reason}." in said
    assert said.endswith(f"The first is of prompt 1: {reason}")


def test_a_service_that_is_gone_ends_the_stage_with_an_error_that_is_retried(
    pupil, write_request, run_here, tmp_path
):
    prompts = pupil.prompts(tmp_path / "asked.jsonl", solutions_of(pupil.rows))
    url = f"http://127.0.0.1:{closed_port()}/get_reward"
    reward = {"name": "http", "url": url, "retries": 0}
    config = {**sampling(prompts, ""), "reward": reward}
    request = write_request(pupil.store, "rejection_sampling", config, {"policy": pupil.policy})
    assert run_here(request) == ExitCode.TRANSIENT
    said = json.loads(request.with_name("error.json").read_text())["message"]
    assert said.startswith(f"{url} did not answer after 0 retries: ")


def test_a_function_that_returns_no_number_stops_the_stage_and_names_the_prompt(
    pupil, write_request, run_here, tmp_path
):
    (tmp_path / "own.py").write_text("def f(rollout, wrong):\n    return rollout.prompt.id")
    prompts = pupil.prompts(tmp_path / "asked.jsonl", solutions_of(pupil.rows))
    said = failure(pupil, write_request, run_here, sampling(prompts, f"{tmp_path}/own.py:f"))
    assert said.startswith("prompt 1: the reward f returned '1' (str); return a number")


def test_a_function_that_does_not_take_the_arguments_stops_the_stage_before_it_samples(
    pupil, write_request, run_here, tmp_path
):
    (tmp_path / "none.jsonl").write_text("no rows")
    (tmp_path / "own.py").write_text("def f(rollout):\n    return 1")
    config = sampling(
        {"name": "files", "path": str(tmp_path / "none.jsonl")}, f"{tmp_path}/own.py:f"
    )
    said = failure(pupil, write_request, run_here, config)  # and so not at the prompts either
    assert said.startswith("the reward f(rollout) cannot be called with a rollout and")
