"""The commands of docs/quickstart.md, typed in their order with the rows of the page."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.cli.start_run import check_run
from flows.config.presets import ROOT, load_config
from flows.new_preset.methods import METHODS
from stages.files import write_jsonl
from training_core.data.templates import chat_template
from training_core.models import hub, scratch

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
COMMANDS = re.findall(r"^    ratchet (.*)$", PAGE, re.MULTILINE)
ROWS = [json.loads(row) for row in re.findall(r"^    (\{.*\})$", PAGE, re.MULTILINE)]
COMMIT = "0" * 40
TEMPLATE = chat_template("roles")


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The folder of a person: the file of the page, and a tiny model in the cache of the hub."""
    write_jsonl(tmp_path / "pairs.jsonl", ROWS * 20)
    (repo,) = re.findall(r"--model (\S+)", COMMANDS[0])
    repository = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    tokenizer = scratch.make_tokenizer([" ".join(row.values()) for row in ROWS], TEMPLATE)
    sizes = scratch.Architecture(32, 1, 2, 64, 96)
    made = scratch.make_policy(sizes, tokenizer, seed=0)
    hub.save(made, tokenizer, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("flows.cli.plan.champion_of", lambda *_: (0, None))
    monkeypatch.setattr("flows.cli.plan.pin_revisions", lambda config: config)  # asks the hub
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_do_what_the_page_says(begun):
    typed = [command.split() for command in COMMANDS]
    assert [words[0] for words in typed] == [
        "new", "data", "plan", "up", "deploy", "run", "chat", "export",
    ]  # fmt: skip
    for words in typed[:3]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        if words[0] == "new":
            (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
            assert shown in done.output
    (run,) = (words for words in typed if words[0] == "run")
    parameters = check_run(run[1], "full-rlhf", {})
    assert parameters["preset"] == str(begun / "mine" / "dpo.yaml")
    config = load_config(run[1])
    for words in typed[-2:]:
        name, _, step = words[1].partition("@")
        assert name == config.name
        assert config.step_config(step) is not None


def test_the_page_names_every_method_and_its_columns():
    for name, method in METHODS.items():
        assert f"`{name}`" in PAGE
        for column in re.findall(r"\w+", method.columns.replace("or ", "").replace("and ", "")):
            assert f"`{column}`" in PAGE, (name, column)
