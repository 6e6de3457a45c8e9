"""The tables of docs/checks.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from stages.catalog import STAGES
from stages.configs.contract_rules import SAME_AS_POLICY

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")


def names_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_the_table_of_canaries_names_the_stages_of_each():
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    written = {n: found for n, stages in rows if (found := set(names_in(stages)) & set(STAGES))}
    recorded: dict[str, set[str]] = {}
    for record in STAGES.values():
        for name in record.canaries:
            recorded.setdefault(name, set()).add(record.name)
    assert written == recorded


def test_the_table_of_contracts_has_the_fields_of_each_role():
    (fields,) = re.findall(r"^\| `reference` \| (.+) \|$", PAGE, re.MULTILINE)
    assert tuple(names_in(fields)) == SAME_AS_POLICY["reference"]
