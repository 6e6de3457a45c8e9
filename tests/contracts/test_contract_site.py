"""The site has every page, and its generated pages have every field and every command.

`make docs` builds the site with MkDocs in strict mode; nothing here needs MkDocs.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli.main import app
from website import commands, configuration, links

DOCS = links.ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *(links.ROOT / name for name in links.PAGES)]
PLACES = {
    *map(links.place_of, [*PAGES, *links.linked_files(PAGES)]),
    commands.PLACE,
    configuration.PLACE,
    *map(links.place_of, (DOCS / "images").iterdir()),
}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)]*\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
PICTURES_BYTES = 1_000_000
FIELDS = [(block, name) for block in configuration.blocks() for name in block.model_fields]


def named_in(navigation: list[Any]) -> list[str]:
    """Pages and folders that a navigation names, without its patterns."""
    found: list[str] = []
    for item in navigation:
        if isinstance(item, str):
            found.append(item)
        elif "glob" not in item:
            (below,) = item.values()
            found += [below] if isinstance(below, str) else named_in(below)
    return found


@pytest.mark.parametrize("file", sorted(DOCS.rglob(".nav.yml")), ids=lambda f: f.parent.name)
def test_the_navigation_names_what_exists_and_ends_with_all_other_pages(file):
    navigation = yaml.safe_load(file.read_text())["nav"]
    folder = file.parent.relative_to(DOCS)
    named = [(folder / name).as_posix() for name in named_in(navigation)]
    assert len(set(named)) == len(named)
    known = PLACES | {str(Path(place).parent) for place in PLACES}
    assert set(named) <= known
    assert navigation[-1] == {"glob": "*", "ignore_no_matches": True}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_place_of_the_site(page):
    place = Path(links.place_of(page))
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [t for t in LINK.findall(links.for_site(text, page)) if "://" not in t]
    found = {(links.ROOT / place.parent / t).resolve().relative_to(links.ROOT) for t in targets}
    assert {path.as_posix() for path in found} <= PLACES


def test_links_change_with_the_place_of_their_page():
    readme, method = links.ROOT / "README.md", DOCS / "methods" / "sft.md"
    assert links.for_site("[a](docs/data.md#rows) [b](CONTRIBUTING.md)", readme) == (
        "[a](data.md#rows) [b](contributing.md)"
    )
    assert links.for_site("[a](../data.md) [b](../../Makefile)", method) == (
        "[a](../data.md) [b](../Makefile)"
    )
    assert links.for_site("![a](docs/images/report.png)", readme) == "![a](images/report.png)"
    assert links.for_site("[a](gone.md), [b](https://c.de/f)", readme) == (
        "[a](gone.md), [b](https://c.de/f)"
    )


@pytest.fixture(scope="module")
def reference() -> str:
    return configuration.page()


def test_the_reference_has_a_row_for_every_field(reference):
    sections = {part.partition("\n")[0]: part for part in reference.split("\n## ")}
    for block, name in FIELDS:
        section = sections[block.__name__]
        (row,) = (line for line in section.splitlines() if line.startswith(f"| `{name}`<br>"))
        assert row.count(" | ") == 3
    assert len(FIELDS) > 400
    assert len({block.__name__ for block, _ in FIELDS}) == len(sections) - 1  # and the top


def test_the_links_of_the_reference_lead_to_its_sections(reference):
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", reference, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", reference)) <= headings


def test_a_row_says_kind_type_range_and_default(reference):
    def row(block: str, field: str) -> list[str]:
        section = reference.partition(f"\n## {block}\n")[2].partition("\n## ")[0]
        (found,) = re.findall(rf"^\| `{field}`<br>(.*) \|$", section, re.MULTILINE)
        return found.split(" | ")[:3]

    epochs = ["semantic", "number<br>more than 0, at most 10,000", "`1.0`"]
    assert row("TrainingConfig", "epochs") == epochs
    assert row("TrainingConfig", "export") == ["semantic", "`last`, `best`", '`"last"`']
    assert row("BestMetricConfig", "metric") == ["semantic", "text", "needed"]
    assert row("ResourcesConfig", "num_gpus") == ["operational", "number<br>at least 0", "`0`"]
    assert row("SftConfig", "eval_data")[1].startswith("[CafeDataConfig](#cafedataconfig) or ")
    assert row("PpoConfig", "critic_optimizer")[2] == "`{name: adamw, learning_rate: 5e-05}`"


@pytest.fixture(scope="module")
def command_page() -> str:
    return commands.page()


def test_the_page_of_commands_has_every_command_with_its_options(command_page):
    def check(command: Any, path: str) -> int:
        section = command_page.partition(f" `{path}`\n")[2].partition("\n##")[0]
        assert section, path
        options = [name for param in command.params for name in param.opts if name[:2] == "--"]
        assert [name for name in options if f"`{name}" not in section and name not in section] == []
        below = command.commands if isinstance(command, TyperGroup) else {}
        return 1 + sum(check(each, f"{path} {name}") for name, each in below.items())

    assert check(get_command(app), "ratchet") > 20
    assert "usage: python -m stages" in command_page


def test_no_text_of_the_page_of_commands_is_html(command_page):
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", command_page, flags=re.DOTALL)
    assert "<" not in without_code


def pins(name: str) -> dict[str, str]:
    text = (links.ROOT / "requirements" / name).read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def test_the_packages_of_the_site_change_nothing_that_the_tests_run_on():
    site, tested = pins("docs.txt"), pins("cpu.txt")
    assert {name: site[name] for name in site.keys() & tested.keys()} == {
        name: tested[name] for name in site.keys() & tested.keys()
    }
    group = tomllib.loads((links.ROOT / "pyproject.toml").read_text())["dependency-groups"]["docs"]
    assert {re.split(r"[<>=]", requirement)[0] for requirement in group} <= site.keys()


def test_every_picture_is_shown_with_a_description_and_all_together_are_small():
    shown = [(page, *found) for page in PAGES for found in PICTURE.findall(page.read_text())]
    files = {(page.parent / path).resolve() for page, _, path in shown}
    assert files == set((DOCS / "images").iterdir())
    assert all(len(description) > 20 for _, description, _ in shown)
    assert 0 < sum(file.stat().st_size for file in files) < PICTURES_BYTES
