"""What is running: `<home>/services.json`, the only memory of `ratchet up`."""

from __future__ import annotations

import fcntl
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.files import write_text
from training_core.errors import RatchetError

_LONGEST_WAIT_SECONDS = 180


class ServiceError(RatchetError):
    """A service could not be started, reached or stopped; the message names it and its log."""


class ServiceRecord(BaseModel):
    """One service, as it was started last.

    Attributes:
        name: its name in the table of services.
        url: where it answers; for the worker, the Prefect API that it polls.
        ports: what it was given; tried first at the next start, so that addresses stay the same.
        pid: the first process of its tree; None where it is stopped or external.
        created: that process's creation time, which tells it from a later one with the same pid.
        log: its output.
        scratch: a folder outside home that it needs and that `down` deletes.
        upstream: the addresses that it was started with; when they change it is started again.
        is_external: it belongs to somebody else, is only used, and is never stopped.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: str
    url: str
    ports: tuple[int, ...] = ()
    pid: int | None = None
    created: float | None = None
    log: Path | None = None
    scratch: Path | None = None
    upstream: dict[str, str] = Field(default_factory=dict)
    is_external: bool = False

    def stopped(self) -> ServiceRecord:
        """The record without its process; the ports stay, for the next start."""
        return self.model_copy(update={"pid": None, "created": None, "scratch": None})


class ServiceRecords(BaseModel):
    """All services of one home.

    Attributes:
        token: is in the environment of every process that `up` starts, and so in all that these
            start: it finds the orphans of a process tree whose root was killed.
        services: by name.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    token: str = Field(default_factory=lambda: uuid.uuid4().hex)
    services: dict[str, ServiceRecord] = Field(default_factory=dict)

    def with_record(self, record: ServiceRecord) -> ServiceRecords:
        """These records, with one added or replaced."""
        return self.model_copy(update={"services": {**self.services, record.name: record}})

    def url_of(self, name: str) -> str | None:
        """The address of a service, or None where it never ran."""
        record = self.services.get(name)
        return record.url if record else None


def load_records(home: Path) -> ServiceRecords:
    """Read `services.json`; empty records where there is none.

    Raises:
        ServiceError: the file is not one that this version of Ratchet wrote.
    """
    path = records_path(home)
    if not path.is_file():
        return ServiceRecords()
    try:
        return ServiceRecords.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ServiceError(
            f"{path} should hold the services that `ratchet up` started, but {error}; "
            "stop its processes by hand (their pids are in it) and delete the file"
        ) from error


def save_records(home: Path, records: ServiceRecords) -> None:
    """Write `services.json` in one step, so that a killed `up` never leaves half a file."""
    write_text(records_path(home), records.model_dump_json(indent=2) + "\n")


def records_path(home: Path) -> Path:
    """Where the records of a home are kept."""
    return home / "services.json"


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Hold a home, so that two `up` or `down` at once cannot start or stop a service twice.

    Raises:
        ServiceError: another command has held it for three minutes.
    """
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
    with lock_path(home).open("a") as file:
        while not _locked(file):
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"another `ratchet up` or `ratchet down` has held {home} for "
                    f"{_LONGEST_WAIT_SECONDS} s; wait for it or stop it, then try again"
                )
            time.sleep(0.5)
        yield  # closing the file gives the lock back


def lock_path(home: Path) -> Path:
    """The file that a running `up` or `down` holds."""
    return home / "services.lock"


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
