"""`ratchet new`: recognises a person's data and writes a preset that is valid as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import new
from flows.cli.main import app
from flows.cli.plan import show_plan
from flows.cli.recipes import recipe_of
from flows.config.presets import load_config, parse_assignments
from flows.new_preset.methods import METHODS
from flows.new_preset.model_facts import ModelFacts, facts_of
from flows.new_preset.preset_text import Choices, Machine, preset_text
from flows.recipe.outline import step_names
from stages.configs.data_config import FileDataConfig
from stages.configs.model_config import LocalModelConfig
from stages.data_check.recognition import recognise_columns
from stages.files import write_jsonl
from tests.flows.new_rows import (
    ASKED,
    BETTER,
    CHAT,
    PAIRS,
    RATED,
    ROWS,
    SOLVED,
    STEPS,
    TEXT,
    VERIFIABLE,
    WORSE,
    ratchet,
    rows_in,
    words,
)
from training_core.models import hub


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_policy, tokenizer):
    """The folder of a tiny model that can chat."""
    folder = tmp_path_factory.mktemp("models") / "model"
    hub.save(make_policy(), tokenizer, folder)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_the_preset_of_each_method_is_valid_and_has_its_steps(method, model, tmp_path, monkeypatch):
    monkeypatch.delenv("RATCHET_SHARED", raising=False)
    data = rows_in(tmp_path, ROWS[method])
    teacher = ["--teacher", model] if method == "distillation" else []
    made = ratchet(
        tmp_path / "mine", "--model", model, "--data", data, "--method", method, *teacher,
        "--gpus", 0,
    )  # fmt: skip
    file = tmp_path / "mine" / f"{method}.yaml"
    assert f"wrote {file}" in words(made)
    assert made.exit_code == 0, made.output
    config = load_config(str(file))
    assert config.name == f"mine-{method}"
    assert step_names(recipe_of("full-rlhf"), config) == STEPS[method]
    assert load_config(str(file), parse_assignments([METHODS[method].example])) != config
    text = file.read_text()
    assert "../rows.jsonl" in text
    assert str(tmp_path) not in re.sub(r"(?m)^#.*$|`ratchet run .*`", "", text)
    assert f"ratchet run {file}" in words(made)


@pytest.mark.parametrize("method", METHODS)
def test_each_key_of_a_preset_has_a_comment(method, tmp_path):
    choices = Choices(
        "mine", method, "mine.yaml", "owner/model", {"name": "hub", "repo": "owner/model"},
        "rows.jsonl", 100_000, teacher="./other", eval_path="held.jsonl", answers="answer",
        lora=True, facts=ModelFacts("chatml", "<pad>", 8192), machine=Machine(64, 8, 79),
    )  # fmt: skip
    lines = [line.strip() for line in preset_text(choices).splitlines()]
    keys = [i for i, line in enumerate(lines) if re.match(r"[a-z_]+: \S", line)]
    bare = [lines[i] for i in keys if not is_told(lines[i - 2 : i])]
    told_together = ("steps:", "max_", "critic_optimizer:", "data:", "model:")
    assert [line for line in bare if not line.startswith(told_together)] == []


def is_told(above):
    """Whether a key has a comment, or is the first one of a block that has one."""
    return above[1].startswith("#") or (above[1].endswith(":") and above[0].startswith("#"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lora", [False, True])
def test_the_preset_of_several_gpus_is_valid_too(method, lora, tmp_path):
    choices = Choices(
        "mine", method, "mine.yaml", "owner/model", {"name": "hub", "repo": "owner/model"},
        "rows.jsonl", 100_000, columns={"chosen": "good: or", "prompt": "#ask"}, teacher="./other",
        eval_path="held out.jsonl", answers="answer", answers_are_numbers=True, lora=lora,
        facts=ModelFacts("chatml", "<|pad: 1|>", 8192), machine=Machine(64, 8, 79),
    )  # fmt: skip
    (tmp_path / "mine.yaml").write_text(preset_text(choices))
    config = load_config(str(tmp_path / "mine.yaml"))
    (trained,) = [
        stage for name, stage in config.stages().items() if name in ("sft", "dpo", "kto", "ppo",
        "reward_model", "process_reward", "distillation")
    ][-1:]  # fmt: skip
    assert trained.resources.num_workers == 8
    assert trained.resources.gpu_memory_gib == 79
    assert trained.model.dtype == "bfloat16"
    assert (trained.model.lora is not None) == lora
    assert "held out.jsonl" in str(config.model_dump())
    assert "{'chosen': 'good: or', 'prompt': '#ask'}" in str(config.model_dump())


@pytest.mark.parametrize(
    ("row", "method", "used", "unused"),
    [
        (CHAT, "sft", "messages", "none"),
        (PAIRS, "dpo", "prompt, chosen, rejected", "source"),
        (RATED, "kto", "prompt, response, label", "none"),
        (VERIFIABLE, "grpo", "question, answer", "level"),
        (SOLVED, "process-reward", "prompt, completions, labels", "none"),
        (TEXT, "continued-pretraining", "text", "url"),
    ],
)
def test_the_method_is_suggested_by_the_columns(tmp_path, model, *, row, method, used, unused):
    data = rows_in(tmp_path, row)
    made = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--gpus", 0)
    assert f"method {method}: {METHODS[method].about} used {used} not used {unused} " in words(made)
    assert (tmp_path / "mine" / f"{method}.yaml").exists()


def test_a_file_with_a_message_of_a_tree_in_each_row_is_recognised(model, tmp_path):
    data = tmp_path / "messages.jsonl"
    asked = {"message_id": "a", "parent_id": None, "role": "prompter", "text": ASKED}
    told = {"parent_id": "a", "role": "assistant", "lang": "en"}
    answers = [
        {**told, "message_id": text, "text": text, "rank": rank}
        for rank, text in enumerate((BETTER, WORSE))
    ]
    write_jsonl(data, [asked, *answers])
    made = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--gpus", 0)
    assert made.exit_code == 0, made.output
    assert "method dpo" in words(made)
    assert "used message_id, parent_id, role, text, rank not used lang " in words(made)


def test_short_answers_are_verified_and_long_ones_are_imitated(tmp_path):
    from flows.new_preset.methods import fitting_method

    def fitting(**columns):
        path = rows_in(tmp_path, columns, times=1)
        return fitting_method(recognise_columns(FileDataConfig(path=str(path))))

    assert fitting(prompt="2 + 2?", response="It is 4.", answer="4") == "grpo"
    assert fitting(prompt="2 + 2?", response="It is 4.", answer="It is 4. " * 20) == "sft"
    assert fitting(prompt="2 + 2?", answer="4") == "grpo"
    assert fitting(prompt="2 + 2?") is None


def test_the_verifier_compares_numbers_as_mathematics_and_words_as_text(model, tmp_path):
    for answer, reward in (("18", "maths"), ("tea", "answer")):
        data = rows_in(tmp_path, {"prompt": ASKED, "answer": answer})
        folder = tmp_path / reward
        assert ratchet(folder, "--model", model, "--data", data, "--gpus", 0).exit_code == 0
        config = load_config(str(folder / "grpo.yaml"))
        assert (config.ppo.reward.name, config.ppo.reward.column) == (reward, "answer")


def test_columns_of_other_names_are_mapped(model, tmp_path):
    data = rows_in(tmp_path, {"ask": ASKED, "good": BETTER, "bad": WORSE})
    given = [tmp_path / "mine", "--model", model, "--data", data, "--gpus", 0]
    refused = ratchet(*given)
    assert refused.exit_code == 1
    assert "the columns ask, good, bad fit no method" in words(refused)
    assert "`--column prompt=question`" in words(refused)
    assert not (tmp_path / "mine").exists()
    columns = ("prompt=ask", "chosen=good", "rejected=bad")
    made = ratchet(*given, *(word for column in columns for word in ("--column", column)))
    assert made.exit_code == 0, made.output
    assert "used ask, good, bad not used none" in words(made)
    wrong = ratchet(*given, "--column", "prompt")
    assert "--column: expected <role>=<column>, found 'prompt'" in words(wrong)


def test_a_method_that_does_not_fit_says_which_columns_it_needs(model, tmp_path):
    data = rows_in(tmp_path, CHAT)
    refused = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--method", "dpo")
    assert refused.exit_code == 1
    assert "dpo: rows.jsonl cannot be read as preferences: its columns are messages" in words(
        refused
    )
    data = rows_in(tmp_path, {"chosen": f"{ASKED} yes", "rejected": f"{ASKED} no"})
    refused = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--method", "ppo")
    assert "ppo: rows.jsonl cannot be read as prompts" in words(refused)
    data = rows_in(tmp_path, {"prompt": ASKED})
    refused = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--method", "grpo")
    assert "grpo: expected a column with correct answers" in words(refused)
    unknown = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--method", "dop")
    assert "unknown method 'dop'; did you mean 'dpo'?" in words(unknown)
    assert not (tmp_path / "mine").exists()


def test_a_preset_that_exists_is_replaced_only_if_asked(model, tmp_path):
    given = [tmp_path / "mine", "--model", model, "--data", rows_in(tmp_path, CHAT), "--gpus", 0]
    assert ratchet(*given).exit_code == 0
    file = tmp_path / "mine" / "sft.yaml"
    file.write_text("# mine\n")
    refused = ratchet(*given)
    assert refused.exit_code == 1
    assert "sft.yaml exists; give --overwrite to replace it" in words(refused)
    assert file.read_text() == "# mine\n"
    assert ratchet(*given, "--overwrite").exit_code == 0
    assert "name: mine-sft" in file.read_text()


def test_without_a_terminal_the_missing_flags_are_named(model, tmp_path):
    refused = ratchet(tmp_path / "mine")
    assert refused.exit_code == 1
    assert "expected --model and --data, because nobody can be asked here" in words(refused)
    data = rows_in(tmp_path, CHAT)
    refused = ratchet(
        tmp_path / "mine", "--model", model, "--data", data, "--method", "distillation"
    )
    assert "expected --teacher, because nobody can be asked here" in words(refused)


def test_in_a_terminal_it_asks_for_what_is_missing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(new, "has_terminal", lambda: True)
    data = rows_in(tmp_path, PAIRS)
    command = ["new", str(tmp_path / "mine"), "--gpus", "0"]
    asked = CliRunner().invoke(app, command, input=f"{model}\n{data}\n\n")
    assert asked.exit_code == 0, asked.output
    assert "Method [dpo]:" in asked.output
    assert "prefer better responses" in asked.output
    assert (tmp_path / "mine" / "dpo.yaml").exists()
    asked = CliRunner().invoke(app, command, input=f"{model}\n{data}\nkto\n")
    assert (tmp_path / "mine" / "kto.yaml").exists()
    silent = CliRunner().invoke(app, [*command, "--yes"])
    assert "expected --model and --data" in words(silent)


def test_data_that_would_stop_the_run_gives_exit_code_1_and_no_command_to_run(model, tmp_path):
    data = rows_in(tmp_path, {**PAIRS, "rejected": ""}, times=3)
    made = ratchet(tmp_path / "mine", "--model", model, "--data", data, "--gpus", 0)
    assert made.exit_code == 1
    assert "stops: dpo.data: 3 bad rows stop the step" in words(made)
    assert f"Mend what stops the run, then: ratchet data check {tmp_path}" in words(made)
    assert "Next:" not in made.output


def test_a_model_is_a_folder_an_id_of_the_hub_or_a_registered_version(model, tmp_path, monkeypatch):
    data = rows_in(tmp_path, PAIRS)
    given = ["--data", data, "--gpus", 0]
    made = ratchet(tmp_path / "a", "--model", "acme/stories", *given)
    assert made.exit_code == 1  # it is not at hand
    assert load_config(str(tmp_path / "a" / "dpo.yaml")).given["sft"].model.repo == "acme/stories"
    ratchet(tmp_path / "b", "--model", "models:/mine.policy@champion", *given)
    registered = load_config(str(tmp_path / "b" / "dpo.yaml")).given["sft"].model
    assert registered.uri == "models:/mine.policy@champion"
    monkeypatch.chdir(model.parent)
    ratchet(tmp_path / "c", "--model", "model", *given)
    local = load_config(str(tmp_path / "c" / "dpo.yaml")).given["sft"].model
    assert Path(local.path).resolve() == model
    refused = ratchet(tmp_path / "d", "--model", "./nothing", *given)
    assert "expected a model: a folder, an id of the hub" in words(refused)
    chats = rows_in(tmp_path, CHAT)
    refused = ratchet(tmp_path / "d", "--model", "models:/a@b", "--data", chats)
    assert "sft: expected a folder or an id of the hub, found models:/a@b" in words(refused)


def test_a_preset_inside_the_repository_starts_at_its_own_folder(monkeypatch, tmp_path):
    from flows.config import presets

    monkeypatch.setattr(presets, "ROOT", tmp_path)
    monkeypatch.setattr(presets, "PRESETS", tmp_path / "deployments" / "presets")
    monkeypatch.setenv("RATCHET_SHARED", "/elsewhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.yaml").write_text("sft: {data: {name: files, path: ../rows.jsonl}}")
    path = load_config(str(tmp_path / "mine" / "a.yaml")).sft.data.path
    assert Path(path).resolve() == (tmp_path / "rows.jsonl").resolve()


def test_what_a_tokenizer_lacks_is_in_the_preset(make_policy, tokenizer, tmp_path):
    from copy import deepcopy

    lacking = deepcopy(tokenizer)
    lacking.chat_template = None
    hub.save(make_policy(), lacking, tmp_path / "base")
    found = facts_of(LocalModelConfig(path=str(tmp_path / "base")))
    assert found == ModelFacts("zephyr", None, 96)
    data = rows_in(tmp_path, CHAT)
    made = ratchet(tmp_path / "mine", "--model", tmp_path / "base", "--data", data, "--gpus", 0)
    config = load_config(str(tmp_path / "mine" / "sft.yaml"))
    assert config.sft.chat_template == "zephyr"
    assert config.sft.training.max_tokens == 96
    assert "used messages" in words(made)
    assert facts_of(LocalModelConfig(path=str(tmp_path / "none"))) is None


def test_the_plan_of_a_new_preset_fits(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setattr("flows.cli.plan.champion_of", lambda *_: (0, None))
    data = rows_in(tmp_path, PAIRS)
    ratchet(tmp_path / "mine", "--model", model, "--data", data, "--method", "ppo", "--gpus", 0)
    assert show_plan(str(tmp_path / "mine" / "ppo.yaml"), "full-rlhf", {}) is True
    assert "memory per GPU" in capsys.readouterr().out
