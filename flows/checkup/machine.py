"""Memory, disks, open files and GPUs of this machine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from flows.checkup.finding import Finding, good, problem, warning

GIB = 1024**3
FEWEST_FREE_GIB, LOW_FREE_GIB = 2, 20
SHARED_GIB = 1
MEMORY_GIB = 6
"""The local services take 2 GiB, and a stage of the preset `tiny` up to 1.5 GiB."""
OPEN_FILES = 4096
SHARED = Path("/dev/shm")


def check_disk(folder: Path) -> Iterator[Finding]:
    """Is there room for checkpoints, and can files be published there?"""
    existing = next(up for up in (folder, *folder.parents) if up.is_dir())
    free = shutil.disk_usage(existing).free / GIB
    where = f"{free:,.0f} GiB free in {folder}"
    fix = "delete what is no longer needed, or set RATCHET_STORE to a larger disk"
    if free < FEWEST_FREE_GIB:
        yield problem(where, fix)
    elif free < LOW_FREE_GIB:
        yield warning(f"{where}; a 7B policy with its checkpoints takes over 100", fix)
    else:
        yield good(where)
    yield from _check_links(existing)


def _check_links(folder: Path) -> Iterator[Finding]:
    """Try what publishing a finished stage does: write, and link without replacing."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as name:
            first = Path(name, "a")
            first.write_text("a")
            try:
                os.link(first, Path(name, "b"))
            except OSError as error:
                yield problem(
                    f"{folder} has no hard links ({error.strerror}); they publish a stage once",
                    "use a file system with hard links (ext4, xfs, NFS, Lustre)",
                )
                return
    except OSError as error:
        yield problem(
            f"{folder} cannot be written ({error.strerror})",
            "change its owner or free space, or set RATCHET_STORE",
        )
    else:
        yield good(f"{folder} can be written and has hard links")


def check_memory() -> Iterator[Finding]:
    """Is there memory for the services and a small stage?"""
    total = psutil.virtual_memory().total / GIB
    if total < MEMORY_GIB:
        yield warning(
            f"{total:,.1f} GiB of memory; services and the demo need about {MEMORY_GIB}",
            "close other programs, or use servers elsewhere (docs/remote.md)",
        )
    else:
        yield good(f"{total:,.0f} GiB of memory")
    if SHARED.is_dir() and (size := shutil.disk_usage(SHARED).total / GIB) < SHARED_GIB:
        yield warning(
            f"{size:.2f} GiB of shared memory in {SHARED}, which Ray and vLLM use",
            "start the container with --shm-size 4g",
        )


def check_open_files() -> Iterator[Finding]:
    """Servers and Ray open many files and sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        most = "unlimited" if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        yield warning(f"at most {soft} open files", f"`ulimit -n {most}` in this shell")
    else:
        yield good(f"{soft:,} open files")


def check_gpus() -> Iterator[Finding]:
    """Does torch's build fit the GPUs of this machine?"""
    build = metadata.version("torch")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        yield good(f"no GPU driver; torch {build}")
        return
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        yield problem(
            f"nvidia-smi ended with {done.returncode}: {done.stdout.strip()[:200]}",
            "repair or reload the driver",
        )
    elif "+cpu" in build:
        yield problem(
            f"{len(done.stdout.splitlines())} GPUs, but torch {build} has no CUDA",
            "install requirements/gpu.txt",
        )
    else:
        yield good(f"{len(done.stdout.splitlines())} GPUs ({done.stdout.splitlines()[0]})")
