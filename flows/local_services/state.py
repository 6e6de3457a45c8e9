"""The running services: `<home>/services.json`, the only state that `ratchet up` keeps."""

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
from stages.safe_text import redacted
from tasks.mlflow_pages import models_page
from training_core.errors import RatchetError

_LONGEST_WAIT_SECONDS = 180


class ServiceError(RatchetError):
    """A service could not be started, reached or stopped; the message contains its name and log."""


class ServiceRecord(BaseModel):
    """One service at its last start.

    Attributes:
        name: its name in the table of services.
        url: its address; for the worker, the Prefect API that it polls. That of an external
            service may contain a password, so show only `page`.
        ports: its ports; tried first at the next start, so that addresses stay the same.
        pid: the first process of its tree; None if it is stopped or external.
        created: creation time of that process; a later one with the same pid has another.
        log: file with its output.
        scratch: a folder outside home that it needs and that `down` deletes.
        upstream: addresses of other services at its start; if they change, it is started again.
        limit: CPUs that Ray may assign, or flow runs that the worker may have at once.
        restarts: Unix times at which the supervisor has started it again since `ratchet up`.
        is_given_up: whether the supervisor has stopped trying.
        is_external: whether Ratchet only uses it and never starts or stops it.
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
    limit: int | None = None
    restarts: tuple[float, ...] = ()
    is_given_up: bool = False
    is_external: bool = False

    @property
    def page(self) -> str:
        """The address for a person: that of the page and not of Prefect's API, without a login."""
        address = page_at(self.url)
        return models_page(address) if self.name == "mlflow" else address

    def stopped(self) -> ServiceRecord:
        """Return the record without its process; it keeps the ports for the next start."""
        ended = {
            "pid": None,
            "created": None,
            "scratch": None,
            "restarts": (),
            "is_given_up": False,
        }
        return self.model_copy(update=ended)


class ServiceRecords(BaseModel):
    """All services of one home.

    Attributes:
        token: in the environment of every process that `up` starts, and of all their children.
            Identifies the orphans of a process tree whose root was killed.
        services: by name.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    token: str = Field(default_factory=lambda: uuid.uuid4().hex)
    services: dict[str, ServiceRecord] = Field(default_factory=dict)

    def with_record(self, record: ServiceRecord) -> ServiceRecords:
        """Return these records with one added or replaced."""
        return self.model_copy(update={"services": {**self.services, record.name: record}})

    def url_of(self, name: str) -> str | None:
        """Return the address of a service, or None if it never ran."""
        record = self.services.get(name)
        return record.url if record else None


def page_at(url: str) -> str:
    """Return the address of a service's page, which is where Prefect's API is, without `/api`."""
    return redacted(url).removesuffix("/api")


def load_records(home: Path) -> ServiceRecords:
    """Read `services.json`; return empty records if there is none.

    Raises:
        ServiceError: if this version of Ratchet cannot read the file.
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
    """Write `services.json` in one step, so that a killed `up` never leaves an incomplete file.

    Only the user may read it: the address of a team's server may contain a password.
    """
    write_text(records_path(home), records.model_dump_json(indent=2) + "\n", is_private=True)


def records_path(home: Path) -> Path:
    """The file with the records of a home."""
    return home / "services.json"


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Lock a home, so that two `up` or `down` at once cannot start or stop a service twice.

    Raises:
        ServiceError: if another command has held the lock for three minutes.
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
        yield  # closing the file releases the lock


def lock_path(home: Path) -> Path:
    """The file that a running `up` or `down` locks."""
    return home / "services.lock"


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
