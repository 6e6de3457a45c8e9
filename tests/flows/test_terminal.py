"""What commands print: no markup is read, and no control character reaches the terminal."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from flows.cli.check_data import check_data
from flows.cli.main import app
from flows.cli.run_results import show_summary
from flows.cli.terminal import Terminal
from flows.local_services.paths import project_root
from stages.files import write_jsonl

TRAP = "[/b] [red]:tea: \x1b]0;renamed\x1b[2J\x9b31m"
SPELLED = r"[/b] [red]:tea: \x1b]0;renamed\x1b[2J\x9b31m"


def terminal(width: int = 300, **options: object) -> tuple[Terminal, io.StringIO]:
    shown = io.StringIO()
    return Terminal(file=shown, width=width, **options), shown


def test_what_is_piped_has_no_bars_of_libraries_and_nothing_is_told_to_prefect(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"prompt": "tea ?", "response": "here are one tea ."}] * 3)
    asked = f"sft.data={json.dumps({'name': 'files', 'path': str(path)})}"
    code = (
        "import os, sys; from flows.cli.main import app; "
        "sys.argv[0] = 'ratchet'; app(standalone_mode=False); print(os.environ['DO_NOT_TRACK'])"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, "data", "check", "tiny", asked),
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("\n1\n")
    assert "examples/s" not in done.stderr


def test_a_text_and_a_cell_are_shown_as_they_are():
    console, shown = terminal()
    console.print(TRAP)
    table = Table(TRAP, title=TRAP)
    table.add_row(TRAP)
    console.print(table)
    assert shown.getvalue().count(SPELLED) == 4
    assert "\x1b" not in shown.getvalue()


def test_a_console_keeps_its_own_colours():
    console, shown = terminal(force_terminal=True, color_system="standard")
    console.print(TRAP, style="red")
    assert shown.getvalue() == f"\x1b[31m{SPELLED}\x1b[0m\n"


def test_numbers_in_a_name_are_not_coloured():
    console, shown = terminal(force_terminal=True, color_system="standard")
    console.print("run-93174175: Running")
    assert shown.getvalue() == "run-93174175: Running\n"


def test_rows_of_a_dataset_are_spelled_out(tmp_path):
    rows = [{"messages": [{"role": r, "content": TRAP} for r in ("user", "assistant")]}] * 3
    path = tmp_path / f"{TRAP.replace('/', '')}.jsonl"
    write_jsonl(path, rows)
    console, shown = terminal()
    overrides = {"sft": {"data": {"name": "files", "path": str(path)}, "eval_data": None}}
    check_data("tiny", overrides, step="sft", console=console)
    assert r"\x1b]0;renamed" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", f"tiny{TRAP}"],
        ["plan", "tiny", f"{TRAP}=1"],
        ["plan", "tiny", f"sft.seed={json.dumps(TRAP)}"],
        ["plan", "tiny", "--flow", TRAP],
        ["data", "check", "tiny", "--step", TRAP],
        ["merge", "no", f"no-{TRAP}", "out"],
    ],
)
def test_errors_are_spelled_out(arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "\\x1b" in result.output
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", result.output)


def test_results_of_a_run_are_spelled_out():
    row = {"step": TRAP, "version": 1, "result": TRAP, "seconds": 1.0, "reused": False}
    summary = {
        "lifecycle": TRAP,
        "rows": [row],
        "is_champion": True,
        "verdict": TRAP,
        "report_file": TRAP,
    }
    console, shown = terminal()
    show_summary(summary, console)
    assert shown.getvalue().count(SPELLED) == 5
    assert "\x1b" not in shown.getvalue()


def test_a_stage_by_itself_spells_out_its_errors(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({f"key{TRAP}": 1}))
    command = [sys.executable, "-m", "stages", "sft", str(config), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, check=False, cwd=project_root())
    assert done.returncode == 20
    assert rb"\x1b]0;renamed" in done.stderr
    assert b"\x1b" not in done.stderr


def test_an_unexpected_error_shows_its_traceback_without_passwords():
    code = (
        "from flows.cli import main, services\n"
        "def fail(**_): raise KeyError('http://ann:s3cret@host \\x1b[2J')\n"
        "services.up = fail\n"
        "main.main()\n"
    )
    command = [sys.executable, "-c", code, "up"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=project_root())
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "KeyError: 'http://host" in done.stderr
    assert "s3cret" not in done.stderr
    assert "\x1b" not in done.stderr


def test_the_version_is_that_of_the_package():
    (written,) = re.findall(
        r'^version = "(.+)"$', (project_root() / "pyproject.toml").read_text(), re.MULTILINE
    )
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"ratchet {written}\n")


def test_commands_print_only_through_the_door():
    """`env` prints for a shell, `--version` a constant; all else goes through `terminal`."""
    found = []
    for file in sorted(Path(project_root(), "flows", "cli").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in DOORS:
                    found.append((file.name, called))
    assert [pair for pair in found if pair[0] != "terminal.py"] == [
        ("main.py", "typer.echo"),
        ("services.py", "sys.stdout.write"),
    ]


DOORS = {
    "print", "typer.echo", "typer.secho", "Console", "sys.stdout.write", "sys.stderr.write",
}  # fmt: skip
