"""Exit codes: one table for a stage's process, its workers and the task that follows it.

Imports no torch, because flows import this module.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum

from pydantic import ValidationError

from training_core.errors import (
    CanaryError,
    InputError,
    IntegrityError,
    MismatchError,
    NonFiniteError,
    RatchetError,
    StoppedError,
    StorageFullError,
    TransientError,
)


class ExitCode(IntEnum):
    """Exit code of a stage's process."""

    DONE = 0
    UNCAUGHT = 1  # Python's own exit code
    LOST_THE_RACE = 10
    BAD_INPUT = 20
    NON_FINITE = 30
    MISMATCH = 31
    CANARY = 32
    DISK_FULL = 40
    TRANSIENT = 75
    STOPPED = 143


@dataclass(frozen=True)
class Ending:
    """One way in which a stage's process ends.

    Attributes:
        code: its exit code.
        causes: errors in the process that lead to this exit code.
        becomes: class of the error that the following task raises if there is no manifest.
        words: description for people.
        may_be_an_echo: True if a worker may end like this only because another worker failed; the
            exit codes of the other workers are then more informative.
    """

    code: ExitCode
    causes: tuple[type[Exception], ...]
    becomes: type[RatchetError]
    words: str
    may_be_an_echo: bool = False

    @property
    def is_transient(self) -> bool:
        """Whether the task retries, because another attempt may succeed."""
        return issubclass(self.becomes, TransientError)


ENDINGS: tuple[Ending, ...] = (
    Ending(ExitCode.DONE, (), TransientError, "done"),
    Ending(
        ExitCode.UNCAUGHT,
        (),
        InputError,  # a retry would meet the same bug or missing package
        "an unexpected error",
        may_be_an_echo=True,
    ),
    Ending(ExitCode.LOST_THE_RACE, (), TransientError, "another attempt finished first"),
    Ending(
        ExitCode.BAD_INPUT,
        (InputError, ValidationError, IntegrityError),
        InputError,
        "config or data is wrong",
    ),
    Ending(ExitCode.NON_FINITE, (NonFiniteError,), NonFiniteError, "a number is NaN or infinite"),
    Ending(ExitCode.MISMATCH, (MismatchError,), MismatchError, "sampler and trainer disagree"),
    Ending(ExitCode.CANARY, (CanaryError,), CanaryError, "a check before the first step failed"),
    Ending(ExitCode.DISK_FULL, (StorageFullError,), StorageFullError, "the disk is full"),
    Ending(
        ExitCode.TRANSIENT,
        (TransientError,),
        TransientError,
        "a failure outside the stage, e.g. of the network",
        may_be_an_echo=True,
    ),
    Ending(ExitCode.STOPPED, (StoppedError,), TransientError, "stopped on request"),
)


def ending_of(code: int | None) -> Ending | None:
    """Return the entry of an exit code; None for other exit codes, e.g. of a killed process."""
    return next((ending for ending in ENDINGS if ending.code == code), None)


def code_of(error: Exception) -> ExitCode:
    """Return the exit code for `error`; TRANSIENT if the table does not contain its class."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExitCode.DISK_FULL
    found = (ending.code for ending in ENDINGS if isinstance(error, ending.causes))
    return next(found, ExitCode.TRANSIENT)
