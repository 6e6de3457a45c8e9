"""`ratchet score`: responses and pairs, by a reward model and by other rewards."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import score as command
from flows.cli.main import app
from stages.configs.reward_config import RewardModelRewardConfig
from stages.files import read_jsonl, write_jsonl
from stages.sampling.intervals import mean_interval, share_interval
from stages.sampling.rewards import build_reward
from training_core.models import hub
from training_core.types import Prompt, Rollout

ASKED = ("two tea please", "two tea please", "one cake", "one pie please")
ANSWERS = ("here are two tea .", "enjoy !", "here is one cake . enjoy !", "here")
WORSE = ("one pie", "here are two", "two tea", "enjoy ! enjoy !")

LENGTH = [f"--reward={field}" for field in ("name=length", "free_tokens=1", "max_tokens=9")]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory, make_scalar_model, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("reward-model")
    model = make_scalar_model()
    model.config.reward_mean, model.config.reward_std = 1.0, 2.0
    hub.save(model, tokenizer, folder)
    return folder


@pytest.fixture
def responses(tmp_path) -> Path:
    rows = [
        {"prompt": asked, "response": answer, "finished": i != 1, "gold": f"{i}"}
        for i, (asked, answer) in enumerate(zip(ASKED, ANSWERS, strict=True))
    ]
    write_jsonl(tmp_path / "responses.jsonl", rows)
    return tmp_path / "responses.jsonl"


@pytest.fixture
def pairs(tmp_path) -> Path:
    rows = [
        {"prompt": asked, "chosen": better, "rejected": worse}
        for asked, better, worse in zip(ASKED, ANSWERS, WORSE, strict=True)
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    return tmp_path / "pairs.jsonl"


def run(data: Path, *more: str) -> Result:
    words = ["score", "--data", str(data), "--out", str(data.with_name("out.jsonl")), *more]
    return CliRunner().invoke(app, words)


def expected(
    folder: Path, texts: tuple[str, ...], *, cut: int | None = None, normalise: bool = True
) -> list[float]:
    """What a stage gets from this reward model; the token limit has cut the response `cut`."""
    rollouts = [
        Rollout(
            Prompt("1", ({"role": "user", "content": asked},), "", ()), (), (), text,
            is_finished=i != cut, policy_version=0,
        )
        for i, (asked, text) in enumerate(zip(ASKED, texts, strict=True))
    ]  # fmt: skip
    config = RewardModelRewardConfig(normalise=normalise)
    return list(build_reward(config, {"reward_model": folder})(rollouts))  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [False, True])
def test_responses_get_the_scores_of_a_stage_and_their_mean_over_prompts(
    reward_model, responses, raw
):
    done = run(responses, str(reward_model), *(["--raw"] if raw else []))
    assert done.exit_code == 0, done.output
    lines = read_jsonl(responses.with_name("out.jsonl"))
    scores = expected(reward_model, ANSWERS, cut=1, normalise=not raw)
    assert [line["score"] for line in lines] == pytest.approx(scores, abs=1e-5)
    assert [line["row"] for line in lines] == [1, 2, 3, 4]
    assert [line["response"] for line in lines] == list(ANSWERS)
    means = [(scores[0] + scores[1]) / 2, scores[2], scores[3]]  # two rows have one prompt
    low, high = mean_interval(means) or (0, 0)
    assert done.stdout.startswith(
        f"mean score {sum(means) / 3:.4g} [{low:.4g}, {high:.4g}] over 3 prompts, 4 responses\n"
    )


def test_pairs_get_an_accuracy_with_its_exact_interval(reward_model, pairs):
    done = run(pairs, str(reward_model))
    assert done.exit_code == 0, done.output
    chosen = expected(reward_model, ANSWERS)
    rejected = expected(reward_model, WORSE)
    lines = read_jsonl(pairs.with_name("out.jsonl"))
    assert [line["chosen_score"] for line in lines] == pytest.approx(chosen, abs=1e-5)
    assert [line["rejected_score"] for line in lines] == pytest.approx(rejected, abs=1e-5)
    right = [float(a > b) for a, b in zip(chosen, rejected, strict=True)]
    assert [line["correct"] for line in lines] == right
    assert 0 < sum(right) < 4
    means = [(right[0] + right[1]) / 2, right[2], right[3]]
    low, high = share_interval(means)
    assert done.stdout.startswith(
        f"accuracy {sum(means) / 3:.4f} [{low:.4f}, {high:.4f}] over 3 prompts, 4 pairs\n"
    )


def test_pairs_of_other_forms_and_columns_of_other_names_are_read(reward_model, pairs):
    assert run(pairs, str(reward_model)).exit_code == 0
    scores = [line["margin"] for line in read_jsonl(pairs.with_name("out.jsonl"))]
    pairs.with_name("out.jsonl").unlink()
    rows = [
        {
            "ask": row["prompt"],
            "first": row["rejected"],
            "second": row["chosen"],
            "winner": "second",
        }
        for row in read_jsonl(pairs)
    ]
    write_jsonl(pairs, rows)
    done = run(pairs, str(reward_model), "--column", "prompt=ask")
    assert done.exit_code == 0, done.output
    assert [line["margin"] for line in read_jsonl(pairs.with_name("out.jsonl"))] == scores


def test_responses_in_columns_of_other_names_are_read(responses):
    rows = [{"ask": row["prompt"], "says": row["response"]} for row in read_jsonl(responses)]
    write_jsonl(responses, rows)
    refused = run(responses, "--reward", "name=pattern", "--reward", "pattern=.*enjoy.*")
    assert refused.exit_code == 1
    names = ("--column", "prompt=ask", "--column", "response=says")
    done = run(responses, "--reward", "name=pattern", "--reward", "pattern=.*enjoy.*", *names)
    assert done.exit_code == 0, done.output
    scores = [line["score"] for line in read_jsonl(responses.with_name("out.jsonl"))]
    assert scores == [0.0, 1.0, 1.0, 0.0]


def test_a_tie_is_half_right(pairs, tmp_path):
    (tmp_path / "own.py").write_text("def f(rollout):\n    return 1.0\n")
    path = f"path={tmp_path / 'own.py'}:f"
    done = run(pairs, "--reward", "name=python", "--reward", path)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("accuracy 0.5000 [")


def test_a_benchmark_with_subsets_is_reported_per_subset(tmp_path):
    """RewardBench has the columns prompt, chosen, rejected and subset."""
    rows = [
        {"id": i, "prompt": f"ask {i}", "chosen": "a" * size, "rejected": "bb", "subset": subset}
        for i, (size, subset) in enumerate([(3, "chat"), (4, "chat"), (5, "safety"), (1, "safety")])
    ]
    write_jsonl(tmp_path / "bench.jsonl", rows)
    (tmp_path / "own.py").write_text("def f(rollout):\n    return float(len(rollout.text))\n")
    path = f"path={tmp_path / 'own.py'}:f"
    done = run(tmp_path / "bench.jsonl", "--reward", "name=python", "--reward", path)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("accuracy 0.7500 [")
    low, high = share_interval([1.0, 1.0])
    assert f"\n  chat: accuracy 1.0000 [{low:.4f}, {high:.4f}] over 2 prompts\n" in done.stdout
    assert "\n  safety: accuracy 0.5000 [" in done.stdout


def test_a_cut_file_is_filled_up_and_the_summary_is_of_all_rows(
    reward_model, responses, monkeypatch
):
    monkeypatch.setattr(command, "BATCH_ROWS", 2)
    whole = run(responses, str(reward_model))
    out = responses.with_name("out.jsonl")
    content = out.read_bytes()
    for size in (0, 7, content.index(b"\n") + 1, len(content) - 1, len(content)):
        out.write_bytes(content[:size])
        assert run(responses, str(reward_model)).stdout == whole.stdout
        assert out.read_bytes() == content
    assert "raw" not in run(responses, str(reward_model)).output
    refused = run(responses, str(reward_model), "--raw")
    assert refused.exit_code == 1
    assert "was made with other settings: reward was" in refused.stderr


def test_another_reward_gets_the_other_columns_and_its_failures_are_reasons(responses, tmp_path):
    (tmp_path / "own.py").write_text(
        "from training_core.rewards.reward import Unscored\n"
        "def f(rollout, *, bonus):\n"
        "    gold = rollout.prompt.columns['gold']\n"
        "    return Unscored('undecided') if gold == '2' else float(gold) + bonus\n"
    )
    fields = ["name=python", f"path={tmp_path / 'own.py'}:f", "arguments.bonus=0.5"]
    done = run(responses, *(word for field in fields for word in ("--reward", field)))
    assert done.exit_code == 0, done.output
    lines = read_jsonl(responses.with_name("out.jsonl"))
    assert [line["score"] for line in lines] == [0.5, 1.5, None, 3.5]
    assert lines[2]["reason"] == "undecided"
    assert "over 2 prompts, 4 responses; 1 responses without a score, e.g. undecided" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the reward reward_model needs a reward model, found none; give MODEL"),
        (("here", "--reward", "name=cafe"), "the reward cafe needs no MODEL, found here"),
        (("--reward", "name=cafee"), "unknown name 'cafee'; did you mean 'cafe'?"),
        (LENGTH, "rows of a file have only texts"),
    ],
)
def test_wrong_options_are_refused(responses, arguments, said):
    done = run(responses, *arguments)
    assert done.exit_code == 1
    assert said in done.stderr
    assert not responses.with_name("out.jsonl").exists()


def test_a_policy_scores_nothing(responses, tmp_path, make_policy, tokenizer):
    hub.save(make_policy(), tokenizer, tmp_path / "policy")
    done = run(responses, str(tmp_path / "policy"))
    assert done.exit_code == 1
    assert "expected a reward model, found in" in done.stderr
