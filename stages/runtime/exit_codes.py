"""Why a stage's process ended: one table for the process, its workers and the task that follows it.

Light, so that a flow can read it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum

from pydantic import ValidationError

from training_core.errors import (
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
    """What a stage's process ends with."""

    DONE = 0
    UNCAUGHT = 1  # Python's own
    LOST_THE_RACE = 10
    BAD_INPUT = 20
    NON_FINITE = 30
    MISMATCH = 31
    DISK_FULL = 40
    TRANSIENT = 75
    STOPPED = 143


@dataclass(frozen=True)
class Ending:
    """One way in which a stage's process ends.

    Attributes:
        code: its exit code.
        causes: errors in the process that end it so.
        becomes: what the task that follows it raises, if there is no manifest then.
        words: for people.
        may_be_an_echo: a worker may end so only because another one has failed, so that the others'
            codes say more.
    """

    code: ExitCode
    causes: tuple[type[Exception], ...]
    becomes: type[RatchetError]
    words: str
    may_be_an_echo: bool = False

    @property
    def is_transient(self) -> bool:
        """Whether another try may succeed, so that the task is to make it."""
        return issubclass(self.becomes, TransientError)


ENDINGS: tuple[Ending, ...] = (
    Ending(ExitCode.DONE, (), TransientError, "done"),
    Ending(
        ExitCode.UNCAUGHT,
        (),
        InputError,  # another try would meet the bug or the missing package again
        "an error that nothing foresaw",
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
    Ending(ExitCode.DISK_FULL, (StorageFullError,), StorageFullError, "the disk is full"),
    Ending(
        ExitCode.TRANSIENT,
        (TransientError,),
        TransientError,
        "a fault of the machinery around it",
        may_be_an_echo=True,
    ),
    Ending(ExitCode.STOPPED, (StoppedError,), TransientError, "asked to stop, and saved"),
)


def ending_of(code: int | None) -> Ending | None:
    """Return the row of an exit code; None for one that is not ours, e.g. of a killed process."""
    return next((ending for ending in ENDINGS if ending.code == code), None)


def code_of(error: Exception) -> ExitCode:
    """Return what a process ends with after `error`; TRANSIENT where the table does not say."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExitCode.DISK_FULL
    found = (ending.code for ending in ENDINGS if isinstance(error, ending.causes))
    return next(found, ExitCode.TRANSIENT)
