"""Floors, doors, and what must stay light. Each asks a fresh interpreter."""

import ast
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HEAVY = ("torch", "transformers", "vllm", "deepspeed", "ray", "mlflow", "datasets", "safetensors")


def loaded_by(code: str) -> set[str]:
    """Heavy modules in `sys.modules` after `code`."""
    program = f"{code}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(ast.literal_eval(found.stdout.splitlines()[-1]))


HELP = """
from typer.testing import CliRunner
from flows.cli import app
result = CliRunner().invoke(app, ["--help"])
assert result.exit_code == 0 and "Usage" in result.output
"""
VALIDATE = """
from flows.presets import load_config
load_config("tiny", {"dpo": {"training": {"epochs": 2}}})
"""
KEY = """
from stages.catalog import STAGES
from stages.identity import stage_key
from stages.store import Store
spec = STAGES["sft"]
stage_key(spec, spec.config_class()(), {})
"""


@pytest.mark.parametrize("code", [HELP, VALIDATE, KEY], ids=["help", "validation", "stage keys"])
def test_help_validation_and_stage_keys_import_nothing_heavy(code):
    assert loaded_by(code) == set()


def test_a_heavy_import_would_be_seen():
    assert "safetensors" in loaded_by("import safetensors")


def test_a_bad_request_is_refused_before_torch_is_loaded():
    code = """
import pathlib, tempfile
from stages.process import run_request
path = pathlib.Path(tempfile.mkdtemp()) / "stages/s/k/attempts/a1/request.json"
path.parent.mkdir(parents=True)
path.write_text("{}")
assert run_request(path) == 20
"""
    assert "torch" not in loaded_by(code)


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
