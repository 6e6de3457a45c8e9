"""docs/security.md states only what a test shows, and nothing is unpickled or evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
LAYERS = ("flows", "tasks", "stages", "training_core")
UNPICKLING = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def guarantees() -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows of the last table of the page: a sentence, and its tests as (file, name)."""
    _, _, text = PAGE.read_text().partition("\n## Guarantees\n")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(sentence, TEST.findall(tests)) for sentence, tests in rows[1:]]


@pytest.mark.parametrize(("sentence", "tests"), guarantees(), ids=lambda v: str(v)[:60])
def test_every_guarantee_has_a_test_that_exists(sentence, tests):
    assert tests, sentence
    for file, name in tests:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), name


def test_the_page_has_a_table_and_is_found():
    assert len(guarantees()) > 20
    for page in ("README.md", "docs/operations.md"):
        assert "security.md)" in (ROOT / page).read_text()


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for layer in LAYERS:
        for file in (ROOT / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                yield str(file.relative_to(ROOT)), node


def test_nothing_is_unpickled_without_protection():
    """DeepSpeed's own `torch.load` is restricted by `training_core.engine.unpickling`."""
    loads = []
    for file, node in nodes():
        if isinstance(node, ast.Import):
            assert not {name.name.split(".")[0] for name in node.names} & UNPICKLING, file
        if isinstance(node, ast.ImportFrom) and node.module in UNPICKLING:
            assert [name.name for name in node.names] == ["UnpicklingError"], file
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load"):
            loads.append(file)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("weights_only") == "True", file
    assert loads == ["training_core/checkpoint.py"]


def test_text_is_evaluated_only_where_a_preset_names_a_function():
    called = {
        (file, ast.unparse(node.func)) for file, node in nodes() if isinstance(node, ast.Call)
    }
    dangerous = {"eval", "exec", "yaml.load", "os.system", "os.popen"}
    assert {(f, name) for f, name in called if name in dangerous} == {
        ("training_core/rewards/python_function.py", "exec")
    }
    shells = [f for f, node in nodes() if isinstance(node, ast.keyword) and node.arg == "shell"]
    assert shells == []
