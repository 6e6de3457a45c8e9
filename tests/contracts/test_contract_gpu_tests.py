"""docs/proof.md lists the tests that need a GPU, and what each of them shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "proof.md"
ROW = re.compile(r"^\| `([\w/]+\.py)::(\w+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
COLLECTED = re.compile(r"^tests/([\w/]+\.py)::(\w+)", re.MULTILINE)


def test_the_page_lists_exactly_the_tests_that_are_marked_gpu():
    files = [
        str(path.relative_to(TESTS.parent))
        for path in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"mark\.gpu|on_cpu_and_gpu", path.read_text())
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *files]
    found = subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, check=False
    ).stdout
    listed = ROW.findall(PAGE.read_text(encoding="utf-8").partition("## On a GPU")[2])
    assert sorted(listed) == sorted(set(COLLECTED.findall(found)))
    assert len(listed) == len(set(listed)) > 0
