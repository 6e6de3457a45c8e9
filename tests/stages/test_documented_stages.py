"""Every `python -m stages …` of a page runs as it stands there, with the configs of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stages.runtime.command_line import main
from stages.runtime.exit_codes import ExitCode
from tests.stages.running import as_if_a_process

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^    python (?:-m pdb )?-m stages (.*)$", re.MULTILINE)
CONFIG = re.compile(r"```yaml\n# (\w+\.yaml)\n(.*?)```", re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if COMMAND.search(page.read_text())
]


def test_a_page_has_such_commands():
    assert [page.name for page in PAGES] == ["operations.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_stages_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    text = page.read_text()
    for name, content in CONFIG.findall(text):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    for command in COMMAND.findall(text):
        with as_if_a_process():
            assert main(shlex.split(command)) == ExitCode.DONE, capsys.readouterr().err
        assert "is done in" in capsys.readouterr().out
