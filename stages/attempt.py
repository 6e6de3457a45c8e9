"""An attempt at a stage: its directory, and the names of all files in it.

Imports only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

JOB_KEY_DIGITS = 12
"""Number of digits of the stage key in the id of a job."""


@dataclass(frozen=True)
class Attempt:
    """One submission of a stage, identified by its own directory.

    In a store the directory is `<store>/stages/<stage>/<key>/attempts/a<number>`. `store_root`,
    `stage`, `key`, `name`, `number` and `job_id` are parts of that path. The other properties work
    for any directory.

    Attributes:
        directory: holds all files of the attempt.
    """

    directory: Path

    # ------------------------------------------------------------------ files in the directory

    @property
    def request(self) -> Path:
        """Request to the process: stage, config and inputs."""
        return self.directory / "request.json"

    @property
    def log(self) -> Path:
        """Log of the process; with several ranks, that of the first."""
        return self.log_of(0)

    def log_of(self, rank: int) -> Path:
        """Log of one rank."""
        return self.directory / (f"log-rank{rank}.txt" if rank else "log.txt")

    @property
    def metrics(self) -> Path:
        """Metrics, one line per step."""
        return self.directory / "metrics.jsonl"

    @property
    def progress(self) -> Path:
        """Number of steps or items done, and their total."""
        return self.directory / "progress.json"

    @property
    def heartbeat(self) -> Path:
        """Last time at which the process was alive."""
        return self.directory / "heartbeat.json"

    @property
    def error(self) -> Path:
        """Error that ended the process; missing after success."""
        return self.directory / "error.json"

    @property
    def canaries(self) -> Path:
        """Results of the checks before the first step."""
        return self.directory / "canaries.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.directory / "checkpoints"

    @property
    def artifact(self) -> Path:
        """Folder of the stage's output."""
        return self.directory / "artifact"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files, if they are enabled."""
        return self.directory / "tensorboard"

    @property
    def universal(self) -> Path:
        """Folder of sharded optimizer states, converted for any number of workers."""
        return self.directory / "universal"

    # ------------------------------------------------------------------ its place in a store

    @property
    def name(self) -> str:
        """Name among the attempts at the same key, e.g. `a2`."""
        return self.directory.name

    @property
    def number(self) -> int:
        """Number among the attempts at the same key, from 1."""
        return int(self.name.removeprefix("a"))

    @property
    def key(self) -> str:
        """The stage key."""
        return self.directory.parents[1].name

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self.directory.parents[2].name

    @property
    def store_root(self) -> Path:
        """Folder of the store."""
        return self.directory.parents[4]

    @property
    def job_id(self) -> str:
        """Id of the Ray job."""
        return f"{self.stage}-{self.key[:JOB_KEY_DIGITS]}-{self.name}"

    # ------------------------------------------------------------------ other attempts

    @property
    def siblings(self) -> tuple[Attempt, ...]:
        """The other attempts at the same key, newest first."""
        return tuple(a for a in attempts_below(self.directory.parent) if a != self)

    def of_rank(self, rank: int) -> Attempt:
        """Return a directory for the outputs of one rank; for the first rank it is the attempt."""
        return Attempt(self.directory / f"rank-{rank}") if rank else self

    @classmethod
    def of_checkpoint(cls, checkpoint: Path) -> Attempt:
        """Return the attempt of a checkpoint, i.e. of a directory in its folder `checkpoints`."""
        return cls(checkpoint.parent.parent)


def attempts_below(folder: Path) -> list[Attempt]:
    """Return the attempts whose directories are in `folder`, newest first.

    Directories with other names than `a<number>`, e.g. copies made by hand, are ignored.
    """
    found = [Attempt(path) for path in folder.glob("a*") if is_attempt(path.name)]
    return sorted(found, key=lambda attempt: attempt.number, reverse=True)


def is_attempt(name: str) -> bool:
    """Whether `name` is the name of an attempt, `a<number>`."""
    return re.fullmatch(r"a[1-9][0-9]{0,8}", name) is not None
