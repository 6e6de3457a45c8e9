"""`ratchet generate`: responses in a file, interrupted anywhere and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from flows.cli import generate as command
from flows.cli.main import app
from flows.cli.row_progress import RowProgress
from flows.cli.terminal import Terminal
from flows.model_use.row_file import settings_path
from stages import datasets
from stages.configs.data_config import FileDataConfig
from stages.configs.sampling_config import TruncatedRolloutConfig
from stages.files import read_jsonl, write_jsonl
from training_core.data.chat import encode_prompt
from training_core.errors import DataError
from training_core.models import hub
from training_core.rollout.sampling import Sampling
from training_core.rollout.transformers_engine import TransformersEngine

WORDS = ("two tea please", "one cake", "hello i would like one pie and two tea please")


@pytest.fixture(scope="module")
def policy(tmp_path_factory, make_policy, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    hub.save(make_policy(seed=1), tokenizer, folder)
    return folder


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": words, "answer": len(words)} for words in WORDS]
    write_jsonl(path, rows)
    return path


def run(policy: Path, prompts: Path, out: Path, *more: str) -> Result:
    options = ["--max-response-tokens", "6", "--responses", "2", "--engine", "transformers"]
    files = ["--prompts", str(prompts), "--out", str(out)]
    return CliRunner().invoke(app, ["generate", str(policy), *files, *options, *more])


@pytest.fixture
def small_batches(monkeypatch) -> None:
    monkeypatch.setitem(command.BATCH_ROWS, "transformers", 2)


def test_the_lines_are_what_the_engine_samples_with_the_seeds_of_a_stage(
    policy, prompts, tmp_path, tokenizer
):
    done = run(policy, prompts, tmp_path / "out.jsonl", "--seed", "3", "--top-p", "0.9")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"6 responses to 3 prompts are in {tmp_path / 'out.jsonl'}\n"
    lines = read_jsonl(tmp_path / "out.jsonl")
    assert [(line["id"], line["number"]) for line in lines] == [
        ("1", 1), ("1", 2), ("2", 1), ("2", 2), ("3", 1), ("3", 2),
    ]  # fmt: skip
    messages = [({"role": "user", "content": words},) for words in WORDS for _ in range(2)]
    asked = [encode_prompt(tokenizer, str(i), one) for i, one in enumerate(messages)]
    engine = TransformersEngine(hub.load_policy(policy), tokenizer)
    sampling = Sampling(max_response_tokens=6, top_p=0.9)
    rollouts = engine.generate(asked, sampling, seeds=[3 * 1_000_003 + i for i in range(6)])
    for line, rollout in zip(lines, rollouts, strict=True):
        assert line["prompt"] == list(rollout.prompt.messages)
        assert line["response"] == rollout.text
        assert line["finish_reason"] == ("stop" if rollout.is_finished else "length")
        assert line["tokens"] == len(rollout.logprobs)
        assert line["logprob_mean"] == pytest.approx(sum(rollout.logprobs) / len(rollout.logprobs))
        assert line["answer"] == len(line["prompt"][0]["content"])
    assert len({line["response"] for line in lines}) > 1


def test_a_file_that_was_cut_anywhere_is_filled_up_to_the_same_bytes(
    policy, prompts, tmp_path, small_batches
):
    out = tmp_path / "out.jsonl"
    assert run(policy, prompts, out).exit_code == 0
    whole = out.read_bytes()
    first = whole.index(b"\n") + 1
    for size in (0, 5, first - 1, first, first + 1, len(whole) - 1):
        out.write_bytes(whole[:size])
        done = run(policy, prompts, out)
        assert done.exit_code == 0, done.output
        assert out.read_bytes() == whole


def test_what_was_written_stays_and_is_not_sampled_again(
    policy, prompts, tmp_path, small_batches, monkeypatch
):
    out = tmp_path / "out.jsonl"
    run(policy, prompts, out)
    lines = out.read_text().splitlines(keepends=True)
    marked = [line.replace('"response": "', '"response": "KEPT ') for line in lines[:4]]
    out.write_text("".join(marked))
    sampled: list[str] = []
    submit = TransformersEngine.submit
    monkeypatch.setattr(
        TransformersEngine,
        "submit",
        lambda self, requests: (sampled.extend(r.id for r in requests), submit(self, requests)),
    )
    assert run(policy, prompts, out).exit_code == 0
    assert out.read_text() == "".join([*marked, *lines[4:]])
    assert sampled == ["4", "5"]
    assert run(policy, prompts, out).exit_code == 0  # complete: no engine is opened
    assert sampled == ["4", "5"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--seed", "1"), "seed was 0, now 1"),
        (("--temperature", "0.5"), "temperature was 1.0, now 0.5"),
        (("--chat-template", "plain"), "chat_template was None, now 'plain'"),
    ],
)
def test_a_file_of_other_settings_is_refused(policy, prompts, tmp_path, change, said):
    out = tmp_path / "out.jsonl"
    run(policy, prompts, out)
    before = out.read_bytes()
    done = run(policy, prompts, out, *change)
    assert done.exit_code == 1
    assert f"{out} was made with other settings: {said}; give another file" in done.stderr
    assert out.read_bytes() == before


def test_other_prompts_and_another_model_are_other_settings(
    policy, prompts, tmp_path, make_policy, tokenizer
):
    out, other = tmp_path / "out.jsonl", tmp_path / "other"
    run(policy, prompts, out)
    hub.save(make_policy(seed=2), tokenizer, other)
    assert "model was '" in run(other, prompts, out).stderr
    prompts.write_text(prompts.read_text().replace("tea", "pie"))
    assert "prompts was '" in run(policy, prompts, out).stderr


def test_a_file_of_something_else_is_refused_and_kept(policy, prompts, tmp_path):
    out = tmp_path / "notes.jsonl"
    out.write_text("my notes")
    done = run(policy, prompts, out)
    assert done.exit_code == 1
    assert "notes.jsonl.settings.json, which would tell how it was made, does not" in done.stderr
    assert out.read_text() == "my notes"


def test_a_changed_line_is_named(policy, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    run(policy, prompts, out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join([lines[1], lines[0]]))
    done = run(policy, prompts, out)
    assert done.exit_code == 1
    assert f"{out}, line 1: expected the row of" in done.stderr
    out.write_text("".join([*lines, lines[0]]))
    assert "expected at most 6 rows, found 7" in run(policy, prompts, out).stderr


def test_prompts_may_be_messages_with_an_id_or_lines_of_text(policy, tmp_path):
    rows = [{"id": "a7", "messages": [{"role": "user", "content": "two tea please"}]}]
    write_jsonl(tmp_path / "chat.jsonl", rows)
    run(policy, tmp_path / "chat.jsonl", tmp_path / "out.jsonl")
    assert [line["id"] for line in read_jsonl(tmp_path / "out.jsonl")] == ["a7", "a7"]
    (tmp_path / "lines.txt").write_text("two tea please\n\none cake\n")
    run(policy, tmp_path / "lines.txt", tmp_path / "text.jsonl")
    lines = read_jsonl(tmp_path / "text.jsonl")
    assert [line["prompt"][0]["content"] for line in lines[::2]] == ["two tea please", "one cake"]
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(DataError, match="expected a prompt per line, found none"):
        command.prompt_rows(tmp_path / "none.txt")


def test_the_stages_read_the_file_as_demonstrations(policy, prompts, tmp_path):
    run(policy, prompts, tmp_path / "out.jsonl")
    rows = datasets.demonstrations(FileDataConfig(path=str(tmp_path / "out.jsonl")))
    assert [row.prompt[0]["content"] for row in rows[::2]] == list(WORDS)
    lines = read_jsonl(tmp_path / "out.jsonl")
    assert [row.is_finished for row in rows] == [x["finish_reason"] == "stop" for x in lines]


def test_a_base_model_without_template_needs_one(prompts, tmp_path, policy):
    base = tmp_path / "base"
    tokenizer = hub.load_tokenizer(policy)
    tokenizer.chat_template = None
    hub.save(hub.load_policy(policy), tokenizer, base)
    done = run(base, prompts, tmp_path / "out.jsonl")
    assert done.exit_code == 1
    assert "has no chat template, so no prompt can be rendered; give --chat-template" in done.stderr
    done = run(base, prompts, tmp_path / "out.jsonl", "--chat-template", "plain")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--temperature", "-1"), "temperature: Input should be greater than or equal to 0"),
        (("--max-response-tokens", "500"), "max_response_tokens 500 leaves no room for a prompt"),
        (("--max-response-tokens", "95"), "no prompt fits into max_tokens"),
        (("--max-tokens", "97"), "max_tokens 97 is more than the 96 tokens that the model takes"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_loaded(
    policy, prompts, tmp_path, options, said
):
    done = run(policy, prompts, tmp_path / "out.jsonl", *options)
    assert done.exit_code == 1
    assert said in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_a_reward_model_cannot_answer(prompts, tmp_path, make_scalar_model, tokenizer):
    hub.save(make_scalar_model(), tokenizer, tmp_path / "rm")
    done = run(tmp_path / "rm", prompts, tmp_path / "out.jsonl")
    assert done.exit_code == 1
    assert "expected a policy, found" in done.stderr


def test_two_processes_do_not_write_one_file(policy, prompts, tmp_path):
    import fcntl

    out = tmp_path / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert f"another process writes {out}" in run(policy, prompts, out).stderr


def test_the_settings_are_beside_the_file(policy, prompts, tmp_path):
    run(policy, prompts, tmp_path / "out.jsonl")
    settings: dict[str, Any] = json.loads(settings_path(tmp_path / "out.jsonl").read_text())
    assert settings["command"] == "generate"
    assert settings["engine"] == "transformers"
    assert settings["max_tokens"] == 96  # what the model can take


def test_without_limits_a_response_has_at_most_half_of_what_the_model_takes(
    policy, prompts, tmp_path
):
    out = tmp_path / "out.jsonl"
    files = ["--prompts", str(prompts), "--out", str(out), "--engine", "transformers"]
    assert CliRunner().invoke(app, ["generate", str(policy), *files]).exit_code == 0
    assert json.loads(settings_path(out).read_text())["max_response_tokens"] == 48


def test_the_defaults_of_the_options_are_those_of_the_config():
    config = TruncatedRolloutConfig.model_fields
    for name in ("generate", "chat"):
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        for parameter in command.params:
            is_shared = parameter.name in config and parameter.name != "engine"
            if is_shared and parameter.default is not None:
                assert parameter.default == config[parameter.name].default, parameter.name


def test_without_a_terminal_the_progress_is_ten_lines_at_most(capsys):
    console = Terminal(stderr=True, force_terminal=False)
    with RowProgress("rows", 50, 100, console) as progress:
        for _ in range(50):
            progress.advance()
    assert capsys.readouterr().err.splitlines() == [
        f"{done} of 100 rows" for done in (60, 70, 80, 90, 100)
    ]


def test_on_a_terminal_the_progress_is_a_bar(capsys):
    console = Terminal(stderr=True, force_terminal=True, width=80)
    with RowProgress("rows", 0, 4, console) as progress:
        progress.advance(4)
    assert "4/4" in capsys.readouterr().err


@pytest.mark.slow
def test_vllm_fills_a_cut_file_up_to_the_same_bytes(
    make_policy, tokenizer, prompts, tmp_path, monkeypatch
):
    monkeypatch.setitem(command.BATCH_ROWS, "vllm", 4)
    hub.save(make_policy(hidden_size=64, num_heads=2), tokenizer, tmp_path / "policy")
    out = tmp_path / "out.jsonl"
    done = run(tmp_path / "policy", prompts, out, "--engine", "vllm")
    assert done.exit_code == 0, done.output
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.index(b"\n") + 9])
    assert run(tmp_path / "policy", prompts, out, "--engine", "vllm").exit_code == 0
    assert out.read_bytes() == whole
    assert json.loads(settings_path(out).read_text())["engine"] == "vllm"
