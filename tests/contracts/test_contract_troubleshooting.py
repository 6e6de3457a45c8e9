"""The messages on the page of troubleshooting are messages of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PACKAGES = ("flows", "tasks", "stages", "training_core")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)


@cache
def texts_of_the_code() -> str:
    """All texts of the four packages, one per line; `…` stands for what an f-string fills in."""
    files = (file for name in PACKAGES for file in (ROOT / name).rglob("*.py"))
    return "\n".join(text.replace("\n", " ") for file in files for text in texts_in(file))


def texts_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield "".join(map(str, parts))


def is_of_the_code(message: str) -> bool:
    """Whether the parts of a message between `…` stand in this order in one text."""
    parts = [re.escape(part) for part in message.split("…") if part.strip()]
    return re.search("[^\n]*".join(parts), texts_of_the_code()) is not None


def test_there_are_messages():
    assert len(MESSAGES) > 60
    assert all(len(message.replace("…", "")) > 10 for message in MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_this_message(message):
    assert is_of_the_code(message)


def test_a_message_of_no_code_would_be_seen():
    assert is_of_the_code("there is no file or folder …; correct")
    assert not is_of_the_code("there is no file or drawer …")
    assert not is_of_the_code("correct `path`…there is no file or folder")
