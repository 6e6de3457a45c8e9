"""Seconds per GB of the check that an artifact is what its manifest records.

    python -m benchmarks digests [--gib 1.0] [--repeats 5]

One file of random bytes, in the memory of the operating system. `sha256` is what Ratchet uses; the
second use of a file in a process compares only its size, time and inode. Seconds of the processor,
so that other processes of the machine matter less. Prints a Markdown table of medians [smallest,
largest].
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median

from stages.runtime.stage_key import digest_of_file

MIB = 2**20


def read(path: Path) -> None:
    """Read the file as `hashlib.file_digest` does, without hashing."""
    buffer = bytearray(MIB // 4)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def hashed(name: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with path.open("rb") as file:
            hashlib.file_digest(file, name)

    return run


def first_use(path: Path) -> None:
    os.utime(path, (path.stat().st_mtime - 1,) * 2)  # as if another file: it must be read again
    digest_of_file(path)


def run(arguments: Namespace) -> None:
    """Measure and print."""
    ways: dict[str, Callable[[Path], object]] = {
        "reading": read,
        "sha256": hashed("sha256"),
        "blake2b": hashed("blake2b"),
        "sha512": hashed("sha512"),
        "first use of a file": first_use,
        "second use": digest_of_file,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights")
        with path.open("wb") as file:
            for _ in range(int(arguments.gib * 1024)):
                file.write(os.urandom(MIB))
        os.utime(path, (1e9, 1e9))
        gigabytes = path.stat().st_size / 1e9
        for _ in range(arguments.repeats):
            for name, way in ways.items():
                start = time.process_time()
                way(path)
                seconds[name].append((time.process_time() - start) / gigabytes)
    print("| what | s per GB |\n|---|---|")
    for name, found in seconds.items():
        print(f"| {name} | {median(found):.3g} [{min(found):.3g}, {max(found):.3g}] |")
