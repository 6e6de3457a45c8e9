"""Floors, doors, and what must stay light. Each asks a fresh interpreter."""

import ast
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from stages.catalog import STAGES

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HEAVY = ("torch", "transformers", "vllm", "deepspeed", "ray", "mlflow", "datasets", "safetensors")


def loaded_by(code: str, modules: Iterable[str] = HEAVY) -> set[str]:
    """Which of `modules` are in `sys.modules` after `code`."""
    program = f"{code}\nimport sys\nprint([m for m in {tuple(modules)!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(ast.literal_eval(found.stdout.splitlines()[-1]))


HELP = """
from typer.testing import CliRunner
from flows.cli.main import app
result = CliRunner().invoke(app, ["--help"])
assert result.exit_code == 0 and "Usage" in result.output
"""
SERVE_HELP = HELP.replace('["--help"]', '["serve-reward", "--help"]')
STAGES_HELP = """
from stages.runtime.command_line import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""
VALIDATE = """
from flows.config.presets import load_config
load_config("tiny", {"dpo": {"training": {"epochs": 2}}})
"""
KEY = """
from stages.catalog import STAGES
from stages.runtime.stage_key import stage_key
from stages.runtime.store import Store
spec = STAGES["sft"]
stage_key(spec, spec.config(), {})
"""


@pytest.mark.parametrize(
    "code",
    [HELP, SERVE_HELP, STAGES_HELP, VALIDATE, KEY],
    ids=["help", "help of a command", "help of stages", "validation", "stage keys"],
)
def test_help_validation_and_stage_keys_import_nothing_heavy(code):
    assert loaded_by(code) == set()


def test_a_heavy_import_would_be_seen():
    assert "safetensors" in loaded_by("import safetensors")


def test_a_bad_request_is_refused_before_torch_is_loaded():
    code = """
import pathlib, tempfile
from stages.runtime.process import run_request
path = pathlib.Path(tempfile.mkdtemp()) / "stages/s/k/attempts/a1/request.json"
path.parent.mkdir(parents=True)
path.write_text("{}")
assert run_request(path) == 20
"""
    assert "torch" not in loaded_by(code)


STAGES_THAT_TRAIN_AND_SAMPLE = """
import pathlib, tempfile
from stages.runtime.store import Store
from tests.stages.running import finish
store = Store(pathlib.Path(tempfile.mkdtemp()))
sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
cafe, training = {"name": "cafe", "size": 16}, {"batch_size": 8, "max_tokens": 64}
base = {"base": {"name": "scratch", **sizes}, "chat_template": "roles"}
words = {"name": "cafe", "size": 200}  # enough for all words of the café
sft = finish(store, "sft", {**base, "data": words, "training": {**training, "batch_size": 100}})
parents = {"policy": sft, "reference": sft}
finish(store, "dpo", {"data": cafe, "training": training}, parents)
few = {"engine": "auto", "max_response_tokens": 4, "max_tokens": 64}
config = {"prompts": cafe, "reward": {"name": "cafe"}, "group_size": 2, "keep_unfinished": True}
finish(store, "rejection_sampling", {**config, "rollouts": few}, {"policy": sft})
"""


def test_a_stage_imports_no_engine_and_no_library_that_it_does_not_use():
    """Each of these costs every stage process between half a second and four."""
    unused = {"sklearn", "scipy", "pandas", "datasets", "deepspeed", "vllm", "peft"}
    others = {"prefect", "mlflow", "ray", "matplotlib"}
    assert loaded_by(STAGES_THAT_TRAIN_AND_SAMPLE, {"torch", *unused, *others}) == {"torch"}


def test_a_flow_starts_without_what_trains_and_draws():
    unused = {"torch", "transformers", "datasets", "ray", "matplotlib"}
    assert loaded_by("import flows.full_rlhf", {"prefect", *unused}) == {"prefect"}


def test_ratchet_help_takes_less_than_a_second():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [BIN / "ratchet", "--help"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # of the processor, so that a busy machine does not matter
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(seconds) < 1.0


def test_the_floors_and_doors_hold():
    found = subprocess.run(
        [BIN / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout
    assert "0 broken" in found.stdout


FLOORS = ("flows", "tasks", "stages", "training_core")
SOURCES = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]


def test_no_module_needs_itself_counting_lazy_and_typing_imports():
    graph = grimp.build_graph(*FLOORS, cache_dir=None)
    needs = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    # A package and what it is made of are one thing to whoever imports it.
    packages = {m for m in graph.modules if graph.find_children(m)}
    for package in packages:
        needs[package] = {m for m in needs[package] if not m.startswith(f"{package}.")}
    TopologicalSorter(needs).prepare()  # raises CycleError, which names the modules


def test_a_cycle_would_be_seen():
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_a_file_name_occurs_once():
    counts = Counter(path.name for path in SOURCES if not path.name.startswith("__"))
    assert [name for name, count in counts.items() if count > 1] == []


def type_names(path: Path) -> list[str]:
    """Classes and aliases at the top of a file, e.g. `Messages = tuple[Message, ...]`."""
    names = []
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names += re.findall(r"^(?:[A-Z][a-z0-9]+)+$", name)
    return names


def test_a_type_name_means_one_thing():
    counts = Counter(name for path in SOURCES for name in type_names(path))
    assert counts["Messages"] == 1
    assert len(counts) > 100
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_imports_of_a_stage_page_stand_at_its_top():
    for spec in STAGES.values():
        tree = ast.parse((ROOT / "stages" / f"{spec.name}.py").read_text())
        inner = [
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert inner == [], spec.name


LONGEST_FILE, LONGEST_FUNCTION = 300, 60


def test_no_file_and_no_function_is_too_long_to_read():
    too_long = []
    for path in SOURCES:
        text = path.read_text()
        if text.count("\n") > LONGEST_FILE:
            too_long.append(path.name)
        too_long += [
            f"{path.name}:{node.name}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
            and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
        ]
    assert too_long == []
