"""An attempt at a stage: its directory, and every file in it by name.

Imports only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

JOB_KEY_DIGITS = 12
"""Of the stage key, in the id of a job."""


@dataclass(frozen=True)
class Attempt:
    """One submission of a stage, by the directory that belongs to it alone.

    In a store that is `<store>/stages/<stage>/<key>/attempts/a<number>`, and `store_root`, `stage`,
    `key`, `name`, `number` and `job_id` are read from it. The names of files hold for any
    directory.

    Attributes:
        directory: where everything of the attempt is.
    """

    directory: Path

    # ------------------------------------------------------------------ what is written there

    @property
    def request(self) -> Path:
        """What the process is asked to do."""
        return self.directory / "request.json"

    @property
    def log(self) -> Path:
        """What the process says, the first rank's of several."""
        return self.log_of(0)

    def log_of(self, rank: int) -> Path:
        """What one rank says."""
        return self.directory / (f"log-rank{rank}.txt" if rank else "log.txt")

    @property
    def metrics(self) -> Path:
        """The curves, one line per step."""
        return self.directory / "metrics.jsonl"

    @property
    def progress(self) -> Path:
        """How much is done."""
        return self.directory / "progress.json"

    @property
    def heartbeat(self) -> Path:
        """When the process was last alive."""
        return self.directory / "heartbeat.json"

    @property
    def error(self) -> Path:
        """Why the process ended, if it did not finish."""
        return self.directory / "error.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.directory / "checkpoints"

    @property
    def artifact(self) -> Path:
        """Folder of what the stage made."""
        return self.directory / "artifact"

    @property
    def tensorboard(self) -> Path:
        """Folder of the event files, if they are asked for."""
        return self.directory / "tensorboard"

    @property
    def universal(self) -> Path:
        """Folder of sharded optimizer states in a form that fits any number of workers."""
        return self.directory / "universal"

    # ------------------------------------------------------------------ where it is in a store

    @property
    def name(self) -> str:
        """Its name among the attempts at the same key, e.g. `a2`."""
        return self.directory.name

    @property
    def number(self) -> int:
        """Its number among the attempts at the same key, from 1."""
        return int(self.name.removeprefix("a"))

    @property
    def key(self) -> str:
        """The stage key."""
        return self.directory.parents[1].name

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.directory.parents[2].name

    @property
    def store_root(self) -> Path:
        """The store's folder."""
        return self.directory.parents[4]

    @property
    def job_id(self) -> str:
        """Id of its Ray job."""
        return f"{self.stage}-{self.key[:JOB_KEY_DIGITS]}-{self.name}"

    # ------------------------------------------------------------------ other attempts

    @property
    def siblings(self) -> tuple[Attempt, ...]:
        """The other attempts at the same key, newest first."""
        return tuple(a for a in attempts_below(self.directory.parent) if a != self)

    def of_rank(self, rank: int) -> Attempt:
        """Return where one rank writes what only one may: the first one's place is the attempt."""
        return Attempt(self.directory / f"rank-{rank}") if rank else self

    @classmethod
    def of_checkpoint(cls, checkpoint: Path) -> Attempt:
        """Return the attempt that a directory below its `checkpoints` belongs to."""
        return cls(checkpoint.parent.parent)


def attempts_below(folder: Path) -> list[Attempt]:
    """Return the attempts whose directories are in `folder`, newest first.

    What is not called `a<number>` is no attempt, e.g. a copy that a person made.
    """
    found = [Attempt(path) for path in folder.glob("a*") if re.fullmatch(r"a[1-9]\d*", path.name)]
    return sorted(found, key=lambda attempt: attempt.number, reverse=True)
