"""What the documentation shows exists and can be used as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from typer.main import get_command

from flows.cli.main import app
from flows.config.presets import load_config
from stages.configs.reward_config import RewardConfig
from stages.configs.reward_service_config import PairwiseJudgeConfig
from training_core.algorithms.aggregation import AGGREGATIONS
from training_core.algorithms.corrections import CORRECTIONS
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.algorithms.policy_losses import POLICY_LOSSES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
METHODS = DOCS / "methods"
MIGRATION = DOCS / "migration"
REWARDS = DOCS / "rewards.md"
DATA = DOCS / "data.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FOLDERS = (
    "flows",
    "tasks",
    "stages",
    "training_core",
    "tests",
    "deployments",
    "benchmarks",
    "docs",
    "website",
)
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (*sorted(METHODS.glob("*.md")), *sorted(MIGRATION.glob("*.md")), REWARDS, DATA)
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
]

FOLDER_NAMES = "|".join(FOLDERS)
PATH = re.compile(rf"(?<![\w./>-])((?:{FOLDER_NAMES})/[\w./-]*)(::)?")
MODULE = re.compile(rf"(?<![\w./])((?:{FOLDER_NAMES})(?:\.\w+)+)")
NAME_IN_FILE = re.compile(rf"`((?:{FOLDER_NAMES})/[\w/]+\.py): (\w+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^    [^\n]+$|```.*?```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
RATCHET = re.compile(r"(?<![\w/.-])(?<!from )ratchet ((?:[a-z][a-z-]* ?){1,2})")
MAKE = re.compile(r"(?<![\w/.-])make ([a-z]+)")
DEPLOYMENT = re.compile(r"deployment run ([\w-]+/[\w-]+)")


def missing_paths(text: str) -> list[str]:
    """Paths of the repository that a text names and that do not exist.

    What stands before `::` is a test, named from the folder `tests`.
    """
    return [
        path
        for path, is_test in PATH.findall(text)
        if not (ROOT / ("tests" if is_test else ".") / path.rstrip(".")).exists()
    ]


def missing_modules(text: str) -> list[str]:
    """Dotted names that neither are a module nor begin with one that defines the next part."""
    return [name for name in MODULE.findall(text) if not module_exists(name.split("."))]


def module_exists(parts: list[str]) -> bool:
    folder = ROOT.joinpath(*parts)
    if folder.is_dir() or folder.with_suffix(".py").is_file():
        return True
    file = ROOT.joinpath(*parts[:-1]).with_suffix(".py")
    return file.is_file() and parts[-1] in names_in(file)


def names_in(file: Path) -> set[str]:
    """Names that a module defines at its top level."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
        found |= {node.name} if hasattr(node, "name") else set()
    return found


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead to no file or to no heading."""
    found = []
    for link in LINK.findall(text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shown_code(text: str) -> str:
    return "\n".join(CODE.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_path_and_module_that_a_page_names_exists(page):
    text = re.sub(r"```diff\n.*?```", "", page.read_text(), flags=re.DOTALL)  # what may be added
    assert missing_paths(text) == []
    assert missing_modules(text) == []
    for file, name in NAME_IN_FILE.findall(text):
        assert name in names_in(ROOT / file), f"{file}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    assert broken_links(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_that_a_page_shows_exists(page):
    code = shown_code(page.read_text())
    commands = get_command(app).commands
    for words in RATCHET.findall(code):
        first, *rest = words.split()
        assert first in commands, f"ratchet {first}"
        if below := getattr(commands[first], "commands", None):
            assert rest[0] in below, f"ratchet {first} {rest[0]}"
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(MAKE.findall(code)) <= set(targets)
    assert set(DEPLOYMENT.findall(code)) <= deployments()


def deployments() -> set[str]:
    """Deployments as Prefect names them: the flow's name in its decorator, and the entry's name."""
    entries = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    found = set()
    for entry in entries:
        file = entry["entrypoint"].partition(":")[0]
        (flow,) = re.findall(r'@flow\(\s*name="([\w-]+)"', (ROOT / file).read_text())
        found.add(f"{flow}/{entry['name']}")
    return found


def test_what_does_not_exist_would_be_seen():
    text = "`stages/settings/` and stages/ppo/__init__.py, but `stages/dpo.py`, `deployments/`."
    assert missing_paths(text) == ["stages/settings/", "stages/ppo/__init__.py"]
    assert missing_paths("`training_core/test_loop.py::test_a`; <store>/stages/ppo/<key>") == []
    assert missing_modules("`stages.curve_sinks`, `stages.dpo.run`, `stages.dpo.walk`") == [
        "stages.curve_sinks",
        "stages.dpo.walk",
    ]
    page = ROOT / "README.md"
    assert broken_links(page, "[a](gone.md) [b](#gone) [c](docs/data.md#rows)") == [
        "gone.md",
        "#gone",
    ]
    assert RATCHET.findall(shown_code("`ratchet data check tiny`")) == ["data check "]
    assert MAKE.findall(shown_code("    make venv  # .venv\n\nto make code")) == ["venv"]
    assert "full-rlhf/tiny" in deployments()


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_a_page_is_a_valid_piece_of_a_preset(block):
    load_config("tiny", yaml.safe_load(block))


def test_every_page_of_a_method_has_an_example_and_is_linked():
    index = (METHODS / "README.md").read_text()
    for page in METHODS.glob("*.md"):
        assert page.name == "README.md" or ("```yaml" in page.read_text() and page.name in index)


def test_every_page_of_a_method_says_when_what_to_look_at_and_common_mistakes():
    for page in METHODS.glob("*.md"):
        if page.name not in ("README.md", "rl-algorithms.md"):
            for part in ("When", "What to look at", "Common mistakes"):
                assert f"\n**{part}.**" in page.read_text(), page.name


def test_the_page_of_rewards_has_a_row_and_an_example_of_each():
    text = REWARDS.read_text()
    examples = " ".join(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    for block in (*get_args(get_args(RewardConfig)[0]), PairwiseJudgeConfig):
        fields = {name: field.default for name, field in block.model_fields.items()}
        name = fields.pop("name")
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        assert set(re.findall(r"`(\w+)`", row)) == {name, *fields}
        assert re.search(rf"(reward: {{|reward:\n +)name: {name}\b", examples)


def test_the_page_of_rl_algorithms_has_a_row_of_each():
    text = (METHODS / "rl-algorithms.md").read_text()
    tables = (ADVANTAGES, POLICY_LOSSES, AGGREGATIONS, KL_ESTIMATORS, CORRECTIONS)
    for name in (name for table in tables for name in table):
        assert re.search(rf"^\| `{name}`", text, re.MULTILINE), name
