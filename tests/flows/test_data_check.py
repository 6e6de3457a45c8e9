"""`ratchet data check`, as a person calls it."""

import io

import pytest
from typer.testing import CliRunner

from flows.cli.check_data import check_data
from flows.cli.main import app
from flows.cli.terminal import Terminal
from stages.files import write_jsonl
from training_core.errors import ConfigError


def run(*arguments):
    return CliRunner().invoke(app, ["data", "check", "tiny", "--rows", "20", *arguments])


def test_it_shows_every_dataset_of_a_preset_with_marked_examples():
    result = run("--examples", "1")
    assert result.exit_code == 0
    for name in ("sft.data", "sft.eval_data", "reward_model.data", "ppo.prompts"):
        assert f"{name}: " in result.output
    assert "<assistant>⟦" in result.output
    assert " </s>⟧" in result.output
    assert "rows 20, tokens median " in result.output
    assert "No problem found." in result.output


def test_it_prints_what_a_file_was_read_as(tmp_path):
    write_jsonl(tmp_path / "asked.jsonl", [{"Body": "two", "Question": "tea", "Answer": 2}])
    columns = "{prompt: '{Body} {Question}', response: Answer}"
    data = f"{{name: files, path: {tmp_path}/asked.jsonl, columns: {columns}}}"
    result = run("--step", "sft", f"sft.data={data}", "sft.eval_data=~")
    assert 'read as prompt = "{Body} {Question}" + response = Answer' in result.output


def test_one_step_is_enough_and_an_unknown_one_is_named():
    assert "reward_model" not in run("--step", "sft").output
    with pytest.raises(ConfigError, match="unknown step 'stf'; did you mean 'sft'"):
        check_data("tiny", {}, step="stf")


def test_a_problem_that_would_stop_a_step_gives_exit_code_1(tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": ""}])
    data = f"{{name: files, path: {tmp_path}/pairs.jsonl}}"
    result = run("--step", "reward_model", f"reward_model.data={data}")
    assert result.exit_code == 1
    assert "stops: reward_model.data: 1 bad rows stop the step" in result.output


def test_a_tokenizer_that_is_missing_stops_and_the_rows_are_still_counted(tmp_path):
    base = f"{{name: local, path: {tmp_path}/none}}"
    result = run("--step", "sft", f"sft.base={base}")
    assert result.exit_code == 1
    assert "stops: sft.base: there is no tokenizer, so nothing was tokenised" in result.output
    assert "rows 20" in result.output


def test_code_in_the_folder_of_a_tokenizer_is_not_run(tmp_path):
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Trap: ...\n")
    (tmp_path / "config.json").write_text('{"model_type": "trap"}')
    auto_map = '{"auto_map": {"AutoTokenizer": ["trap.Trap", null]}}'
    (tmp_path / "tokenizer_config.json").write_text(auto_map)
    (tmp_path / "tokenizer.json").touch()
    base = f"sft.base={{name: local, path: {tmp_path}}}"
    command = ["data", "check", "tiny", "--rows", "5", "--step", "sft", base]
    result = CliRunner().invoke(app, command, input="y\ny\n")
    assert result.exit_code == 1
    assert "Ratchet never runs such code" in " ".join(result.output.split())
    assert not (tmp_path / "ran").exists()


def test_data_that_cannot_be_read_is_reported_once(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    result = run(f"sft.data={{name: files, path: {tmp_path}/rows.jsonl}}")
    assert result.exit_code == 1
    assert result.output.count("it is empty; fill or remove it") == 1
    assert "there is no tokenizer, so nothing was tokenised; see sft.data" in result.output


def test_prompts_of_the_evaluation_that_a_step_trains_on_are_noted():
    data = {"name": "cafe", "split": "heldout", "size": 256, "seed": 9}
    shown = io.StringIO()
    overrides = {"sft": {"data": data}, "evaluation": {"prompts": data}}
    assert check_data("tiny", overrides, first_rows=5, console=Terminal(file=shown, width=200))
    # the seed of a café's rows includes their kind, so orders differ: only eval_data can overlap
    assert "sft.eval_data: 5 of 5 different prompts are also in sft.data" in shown.getvalue()


def test_an_evaluation_on_trained_prompts_stops_and_excluded_prompts_do_not(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "one tea"}, {"prompt": "two tea"}])
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "two tea"}, {"prompt": "three tea"}])
    files = [f"{{name: files, path: {tmp_path}/{name}.jsonl}}" for name in "ab"]
    given = [f"ppo.prompts={files[0]}", f"evaluation.prompts={files[1]}"]
    result = run("--step", "evaluation", *given)
    assert result.exit_code == 1
    assert "stops: evaluation: 1 of 2 different prompts of evaluation.prompts" in result.output
    result = run("--step", "evaluation", *given, f"evaluation.exclude={files[0]}")
    assert result.exit_code == 0
    assert "evaluation.exclude: prompts" in result.output


def test_trained_tokens_are_bold_in_a_terminal():
    shown = io.StringIO()
    console = Terminal(file=shown, force_terminal=True, width=200, color_system="standard")
    assert check_data("tiny", {}, step="sft", first_rows=3, num_examples=1, console=console)
    assert "\x1b[1;32mhere are" in shown.getvalue() or "\x1b[1;32m" in shown.getvalue()
    assert "⟦" not in shown.getvalue()
