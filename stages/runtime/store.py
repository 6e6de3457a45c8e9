"""Finished stages on disk, with all attempts at them.

    <store>/stages/<stage>/<key>/manifest.json        exists if and only if the stage is done
    <store>/stages/<stage>/<key>/attempts/a1/…        one directory per submission, private to it

The manifest is written by the stage's own process and published with a hard link, which fails if
one exists: the attempt that finishes first wins. Only the manifest decides whether a stage is done.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from stages.attempt import Attempt, attempts_below
from stages.configs.stage_record import ArtifactKind
from stages.runtime.stage_key import digest_of, digest_of_file
from training_core.errors import IntegrityError

log = logging.getLogger("ratchet.store")

MANIFEST = "manifest.json"


class FileRecord(BaseModel):
    """One file of an artifact; `path` is relative to the artifact's directory."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    path: str
    size: int
    sha256: str


class Request(BaseModel):
    """The complete task of a stage's process; written before it starts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    stage: str
    step: str
    key: str
    config: dict[str, Any]
    inputs: dict[str, str]
    input_digests: dict[str, str]
    parents: dict[str, str]


class Manifest(BaseModel):
    """The record of a finished stage.

    Attributes:
        stage: the stage's name.
        step: name of the stage in the flow that first requested it (e.g. the step
            `rejection_sft` of the stage `sft`).
        version: the stage's version.
        key: the stage key.
        kind: kind of the artifact.
        attempt: name of the attempt directory that holds the artifact.
        config: the resolved config with all fields, semantic or not.
        input_digests: digest by role.
        parents: key of the stage that produced the input, by role.
        files: the artifact's files.
        digest: digest of `files`; identifies the artifact.
        metrics: numbers that describe the result.
        environment: versions of packages, the host and the Ray job.
        cost: wall-clock seconds and reserved hardware.
        finished_at: Unix time.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    schema_version: int = 1
    stage: str
    step: str
    version: int
    key: str
    kind: ArtifactKind
    attempt: str
    config: dict[str, Any]
    input_digests: dict[str, str]
    parents: dict[str, str]
    files: tuple[FileRecord, ...]
    digest: str
    metrics: dict[str, float]
    environment: dict[str, str]
    cost: dict[str, float]
    finished_at: float


class Store:
    """The stages below one folder.

    Args:
        root: folder on a filesystem that every node can access.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage_dir(self, stage: str, key: str) -> Path:
        """Return the directory of one stage key."""
        return self.root / "stages" / stage / key

    def attempt(self, stage: str, key: str, name: str) -> Attempt:
        """Return an attempt at a stage key, whether it exists or not."""
        return Attempt(self._attempts_dir(stage, key) / name)

    def attempts(self, stage: str, key: str) -> list[Attempt]:
        """Return the attempts at a stage key, newest first."""
        return attempts_below(self._attempts_dir(stage, key))

    def attempt_of(self, manifest: Manifest) -> Attempt:
        """Return the attempt that wrote the artifact of a manifest."""
        return self.attempt(manifest.stage, manifest.key, manifest.attempt)

    def artifact_dir(self, manifest: Manifest) -> Path:
        """Return the directory of the files that a manifest records."""
        return self.attempt_of(manifest).artifact

    def find(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a finished stage whose files are all there, or None.

        A manifest whose files are missing or of another size is set aside as
        `manifest.corrupt-<time>.json`, so that the stage runs again.
        """
        path = self.stage_dir(stage, key) / MANIFEST
        try:
            manifest = Manifest.model_validate_json(path.read_bytes())
            self.verify(manifest)
        except FileNotFoundError:
            return None
        except (IntegrityError, ValueError) as error:
            log.warning(
                "%s %s is done again, since its result is damaged: %s", stage, key[:12], error
            )
            with suppress(FileNotFoundError):  # another process has renamed it already
                path.rename(path.with_name(f"manifest.corrupt-{time.time_ns()}.json"))
            return None
        return manifest

    def find_digest(self, stage: str, key: str, digest: str) -> Manifest | None:
        """Return the manifest with this digest, even if it was set aside, or None.

        A stage that runs again may produce another digest for the same key.
        """
        found = self.find(stage, key)
        if found is not None and found.digest == digest:
            return found
        for path in self.stage_dir(stage, key).glob("manifest.set-aside-*.json"):
            manifest = Manifest.model_validate_json(path.read_bytes())
            if manifest.digest == digest:
                self.verify(manifest)
                return manifest
        return None

    def set_aside(self, stage: str, key: str, *, once_for: str) -> None:
        """Rename the manifest, so that the stage runs again.

        A second call for the same `once_for` does nothing.
        """
        directory = self.stage_dir(stage, key)
        mark = directory / f"set-aside-{once_for}"
        directory.mkdir(parents=True, exist_ok=True)
        if mark.exists():
            return
        mark.touch()
        path = directory / MANIFEST
        if path.exists():
            path.rename(directory / f"manifest.set-aside-{time.time_ns()}.json")
        for attempt in self.attempts(stage, key):  # the stage would resume from its checkpoints
            if attempt.checkpoints.exists():
                attempt.checkpoints.rename(attempt.checkpoints.with_name("checkpoints.set-aside"))

    def manifests(self) -> list[Manifest]:
        """Return every manifest in the store, oldest first."""
        paths = (self.root / "stages").glob(f"*/*/{MANIFEST}")
        return sorted(
            (Manifest.model_validate_json(p.read_bytes()) for p in paths),
            key=lambda m: m.finished_at,
        )

    def verify(self, manifest: Manifest, *, full: bool = False) -> None:
        """Check the artifact's files against the manifest.

        Checks existence, size and safetensors header; with `full` also the contents.

        Raises:
            IntegrityError: if a file differs; the message names the first.
        """
        directory = self.artifact_dir(manifest)
        for record in manifest.files:
            path = directory / record.path
            size = path.stat().st_size if path.exists() else None
            if size != record.size:
                found = "no file" if size is None else f"{size} bytes"
                raise IntegrityError(f"{path}: expected {record.size} bytes, found {found}")
            if path.suffix == ".safetensors":
                _check_safetensors(path)
            if full and (sha := digest_of_file(path)) != record.sha256:
                raise IntegrityError(f"{path}: expected sha256 {record.sha256}, found {sha}")

    def publish(self, draft: Manifest) -> bool:
        """Publish `draft` as the manifest of its key.

        Returns:
            True if this attempt is the first to finish; False if another one was.
        """
        target = self.stage_dir(draft.stage, draft.key) / MANIFEST
        temporary = target.with_name(f".manifest-{draft.attempt}-{os.getpid()}")
        with temporary.open("w") as file:
            file.write(draft.model_dump_json(indent=2))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        for record in draft.files:
            path = self.artifact_dir(draft) / record.path
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        return True

    def _attempts_dir(self, stage: str, key: str) -> Path:
        return self.stage_dir(stage, key) / "attempts"


def record_files(directory: Path) -> tuple[tuple[FileRecord, ...], str]:
    """Write every file below `directory` to disk with fsync; return their records and digest."""
    records = []
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        relative = path.relative_to(directory).as_posix()
        records.append(
            FileRecord(path=relative, size=path.stat().st_size, sha256=digest_of_file(path))
        )
    return tuple(records), digest_of([[r.path, r.sha256] for r in records])


def _check_safetensors(path: Path) -> None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
    try:
        end = max(
            (v["data_offsets"][1] for k, v in json.loads(header).items() if k != "__metadata__"),
            default=0,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: the safetensors header is not readable") from error
    if 8 + length + end != path.stat().st_size:
        raise IntegrityError(f"{path}: the safetensors header promises {8 + length + end} bytes")
