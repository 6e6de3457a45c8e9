"""Every command that a page shows is of a kind that a test types, runs or parses.

prefect …, ratchet …          typed by tests/lifecycle/test_documented_commands.py
ratchet …                     parsed here, too
python -m stages …            run by tests/stages/test_documented_stages.py
python -m benchmarks …        parsed here
make …                        looked up by tests/contracts/test_contract_docs.py
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from benchmarks.__main__ import ARGUMENTS, FOLDER, parser
from flows.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]

FENCE = re.compile(r"^```(\w*)\n.*?^```$", re.DOTALL | re.MULTILINE)
FENCES = {"diff", "json", "mermaid", "python", "yaml"}
"""Languages of fenced blocks; commands stand in indented blocks."""

INDENTED = re.compile(r"(?:^    [^\n]*\n)+", re.MULTILINE)
BENCHMARK = re.compile(r"python -m benchmarks ([^`\n]+)")
CHECKED = re.compile(r"(?:prefect|ratchet|make) |python (?:-m pdb )?-m (?:stages|benchmarks) ")
OTHERS = {
    'source .venv/bin/activate && eval "$(ratchet env)"',  # what test_documented_commands does
    'eval "$(ratchet env)"',
    "pip install 'ratchet-rlhf[trl]'",  # needs an index of packages; the extra is in pyproject.toml
}


def commands_in(text: str) -> list[str]:
    """Lines of indented blocks that begin like a command; formulas, YAML and Python do not."""
    blocks = INDENTED.findall(FENCE.sub("", text))
    lines = [line for block in blocks if not is_python(block) for line in lines_of(block)]
    return [line for line in lines if re.match(r"(?![\w ]+ = )[a-z][a-z-]* +[^\s=]", line)]


def lines_of(block: str) -> list[str]:
    """Lines without their comments; one that ends with a backslash goes on in the next."""
    joined = re.sub(r"\\\n *", "", block)
    return [re.sub(r" +# .*", "", line).strip() for line in joined.splitlines()]


def is_python(block: str) -> bool:
    try:
        ast.parse("\n".join(line[4:] for line in block.splitlines()))
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_of_a_kind_that_a_test_checks(page):
    text = page.read_text()
    assert set(FENCE.findall(text)) <= FENCES
    unknown = [line for line in commands_in(text) if not CHECKED.match(line)]
    assert set(unknown) <= OTHERS


def test_a_command_of_another_kind_would_be_seen():
    text = "Do:\n\n    docker build .  # it\n    ratchet plan \\\n      tiny\n\n    a rate = b c\n"
    assert commands_in(text) == ["docker build .", "ratchet plan tiny"]
    assert commands_in("    import mlflow\n    from a import b\n\n    data: {name: cafe}\n") == []
    assert FENCE.findall("```sh\nls\n```\n") == ["sh"]
    assert "python -m stages sft sft.yaml" in commands_in((ROOT / "docs/operations.md").read_text())


def test_there_is_no_other_module_of_ours_that_a_page_runs():
    for page in PAGES:
        modules = re.findall(r"python (?:-m pdb )?-m ([\w.]+)", page.read_text())
        assert set(modules) <= {"stages", "benchmarks"}, page.name


BENCHMARKS = sorted({line for page in PAGES for line in BENCHMARK.findall(page.read_text())})


@pytest.mark.parametrize("line", BENCHMARKS)
def test_the_arguments_of_a_benchmark_are_those_of_its_parser(line):
    arguments = parser().parse_args(shlex.split(re.sub(r"<[^>]*>", "placeholder", line)))
    assert arguments.benchmark in line


def ratchet_commands() -> list[str]:
    lines = {line for page in PAGES for line in commands_in(page.read_text())}
    return sorted(line for line in lines if line.startswith("ratchet "))


@pytest.mark.parametrize("line", ratchet_commands())
def test_the_arguments_of_a_command_of_ratchet_are_those_that_it_takes(line):
    without_marks = re.sub(r"[<>]|\[[^]]*\]", "", line)
    command, words = get_command(app), shlex.split(without_marks)[1:]
    while isinstance(command, TyperGroup):
        context = command.make_context("ratchet", list(words[:1]), resilient_parsing=True)
        _, command, _ = command.resolve_command(context, words)
        words = words[1:]
    assert command is not None
    command.make_context("ratchet", words)  # raises UsageError


def test_every_benchmark_takes_what_its_parser_gives_and_explains_itself(capsys):
    for name in ARGUMENTS:
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        (run,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run")
        assert [argument.arg for argument in run.args.args] == ["arguments"]
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "arguments"
        }
        with pytest.raises(SystemExit, match="0"):
            parser().parse_args([name, "--help"])
        assert f"python -m benchmarks {name}" in capsys.readouterr().out
        required = ["placeholder"] if name in ("grpo", "training", "lifecycle") else []
        given = vars(parser().parse_args([name, *required]))
        assert used == given.keys() - {"benchmark"}, name


def test_a_page_shows_how_to_run_each_benchmark():
    assert {line.split()[0] for line in BENCHMARKS} >= ARGUMENTS.keys()
