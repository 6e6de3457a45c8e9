"""docs/proof.md names, for each of the 33 families, tests that are there."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "proof.md"
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
GUARD = re.compile(r"`([\w/]+\.py)::(\w+)`")


def guards():
    """Family number -> [(file, test)]."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {int(number): GUARD.findall(named) for number, named in rows}


def test_every_family_is_in_the_table_once_with_a_guard():
    numbers = [int(n) for n, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))]
    assert numbers == list(range(1, 34))
    assert [number for number, named in guards().items() if not named] == []


def test_every_guard_in_the_table_exists():
    missing = [
        f"{file}::{name} (family {number})"
        for number, named in guards().items()
        for file, name in named
        if not re.search(rf"^def {name}\(", _text(TESTS / file), re.MULTILINE)
    ]
    assert missing == []


def test_every_test_that_says_its_family_is_in_the_table():
    named = {name for some in guards().values() for _, name in some}
    for path in sorted((TESTS / "families").glob("test_*_families.py")):
        found = set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
        assert found <= named, path.name


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
