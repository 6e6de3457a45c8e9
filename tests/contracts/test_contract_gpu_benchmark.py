"""The benchmark `gpu` runs where only torch and transformers are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu import METHODS
from benchmarks.gpu_models import PRECISIONS

ROOT = Path(__file__).parents[2]


def required(*names: str) -> dict[str, Distribution]:
    """Some installed distributions with everything that they require, by name."""
    found: dict[str, Distribution] = {}
    missing = list(names)
    while missing:
        name = canonicalize_name(missing.pop())
        try:
            if name not in found:
                found[name] = distribution(name)
                missing += _requirements_of(found[name])
        except PackageNotFoundError:  # e.g. CUDA's libraries, which the builds for CPUs lack
            continue
    return found


def _requirements_of(one: Distribution) -> Iterator[str]:
    for line in one.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


@pytest.mark.slow
def test_every_row_is_measured_with_torch_and_transformers_only(tmp_path):
    packages = required("torch", "transformers")
    assert not packages.keys() & {
        "ray",
        "vllm",
        "deepspeed",
        "peft",
        "datasets",
        "prefect",
        "scipy",
    }
    for one in packages.values():
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            link = tmp_path / top
            if not link.exists():
                link.symlink_to(str(one.locate_file(top)))
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    command = [sys.executable, "-S", "-m", "benchmarks", "gpu", "--device", "cpu", "--tiny"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:4] for line in done.stdout.splitlines() if "| tiny |" in line]
    expected = [(method, precision) for method in METHODS for precision in PRECISIONS]
    assert [(method.strip(), precision.strip()) for method, _, precision in rows] == expected
