"""The page of faults has every fault, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROWS = [line.split("|") for line in PAGE.splitlines() if NAMED.search(line)]
FAULTS = (
    "process of a stage",
    "one of several ranks",
    "rollout engine",
    "flow process",
    "Ray head",
    "Prefect worker",
    "Prefect server",
    "MLflow server",
    "database",
    "loss of power",
    "disk is full",
    "checkpoint is torn or a bit of it flips",
    "clock jumps",
    "two runs want one stage key",
    "two promotions",
    "cancelled",
    "row of a dataset is bad",
    "loss is not finite",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_row_that_names_its_tests(fault):
    rows = [tests for _, what, _, tests, _ in ROWS if fault in what]
    assert rows
    assert all(NAMED.search(tests) for tests in rows)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_every_test_that_the_page_names_exists(file, name):
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert name.startswith("test_")
