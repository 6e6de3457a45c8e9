"""Finished stages on disk, with all attempts at them.

    <store>/stages/<stage>/<key>/manifest.json        exists if and only if the stage is done
    <store>/stages/<stage>/<key>/attempts/a1/…        one directory per submission, private to it

The manifest is written by the stage's own process and published with a hard link, which fails if
one exists: the attempt that finishes first wins. Only the manifest decides whether a stage is done.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from stages.attempt import Attempt, attempts_below, is_attempt
from stages.runtime.manifest import REMEDY, Manifest, manifest_text, read_manifest
from stages.runtime.stage_key import digest_of_file
from training_core.errors import ConfigError, IntegrityError
from training_core.names import require_name

log = logging.getLogger("ratchet.store")

MANIFEST = "manifest.json"
SET_ASIDE = "manifest.set-aside-"
REMEDY_OF_FILES = "restore the file, or run the flow that made it again"


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


class Store:
    """The stages below one folder.

    Args:
        root: folder on a filesystem that every node can access.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage_dir(self, stage: str, key: str) -> Path:
        """Return the directory of one stage key.

        Raises:
            ConfigError: if `stage` or `key` is not a name.
        """
        folder = self.root / "stages" / require_name("stage", stage)
        return folder / require_name("stage key", key)

    def attempt(self, stage: str, key: str, name: str) -> Attempt:
        """Return an attempt at a stage key, whether it exists or not.

        Raises:
            ConfigError: if `name` is not that of an attempt.
        """
        if not is_attempt(name):
            raise ConfigError(f"expected an attempt as in 'a1', found {name!r:.120}; correct it")
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
        """Return the manifest of a finished stage whose files are as they were written, or None.

        If the manifest or a file was damaged, the manifest is set aside as
        `manifest.corrupt-<time>.json`, so that the stage runs again.

        Raises:
            ConfigError: if a later version of Ratchet wrote the manifest, or `stage` or `key` is
                not a name.
        """
        try:
            return self.read(stage, key)
        except IntegrityError as error:
            log.warning(
                "%s %s is done again, since its result is damaged: %s", stage, key[:12], error
            )
            path = self.stage_dir(stage, key) / MANIFEST
            with suppress(FileNotFoundError):  # another process has renamed it already
                path.rename(path.with_name(f"manifest.corrupt-{time.time_ns()}.json"))
            return None

    def read(self, stage: str, key: str) -> Manifest | None:
        """Return the manifest of a finished stage, or None; change nothing.

        Raises:
            IntegrityError: if the manifest or a file was damaged.
            ConfigError: see `find`.
        """
        try:
            manifest = self._read(self.stage_dir(stage, key) / MANIFEST)
            self.verify(manifest)
        except FileNotFoundError:
            return None
        return manifest

    def find_digest(self, stage: str, key: str, digest: str) -> Manifest | None:
        """Return the manifest with this digest, even if it was set aside, or None.

        A stage that runs again may produce another digest for the same key.

        Raises:
            IntegrityError: if its files are damaged; the message names the first.
        """
        folder = self.stage_dir(stage, key)
        paths = [p for p in (folder / MANIFEST, *folder.glob(f"{SET_ASIDE}*.json")) if p.exists()]
        for manifest in self._readable(paths):
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
        path = directory / MANIFEST
        if path.exists():
            path.rename(directory / f"{SET_ASIDE}{time.time_ns()}.json")
        for attempt in self.attempts(stage, key):  # the stage would resume from its checkpoints
            if attempt.checkpoints.exists():
                attempt.checkpoints.rename(attempt.checkpoints.with_name("checkpoints.set-aside"))
            if attempt.canaries.exists():
                attempt.canaries.rename(attempt.canaries.with_name("canaries.set-aside.json"))
        mark.touch()  # the last, or a process killed before the rest would reuse the stage

    def manifests(self) -> list[Manifest]:
        """Return every manifest in the store, oldest first.

        One that cannot be read is left out, and a warning names it.
        """
        paths = (self.root / "stages").glob(f"*/*/{MANIFEST}")
        return sorted(self._readable(paths), key=lambda m: m.finished_at)

    def first_of(self, stage: str, keys: Iterable[str]) -> Manifest | None:
        """Return the manifest of the first of these keys that has one that can be read, or None."""
        paths = (self.stage_dir(stage, key) / MANIFEST for key in keys)
        return next(self._readable(paths), None)

    def verify(self, manifest: Manifest) -> None:
        """Check the artifact's files against the manifest: their sizes and their contents.

        Raises:
            IntegrityError: if a file differs; the message names the first.
        """
        directory = self.artifact_dir(manifest)
        for record in manifest.files:
            path = directory / record.path
            size = path.stat().st_size if path.exists() else None
            if size != record.size:
                found = "no file" if size is None else f"{size} bytes"
                raise IntegrityError(
                    f"{path}: expected {record.size} bytes, found {found}; {REMEDY_OF_FILES}"
                )
            if (sha256 := digest_of_file(path)) != record.sha256:
                raise IntegrityError(
                    f"{path}: expected sha256 {record.sha256}, found {sha256}; {REMEDY_OF_FILES}"
                )

    def publish(self, draft: Manifest) -> bool:
        """Publish `draft` as the manifest of its key.

        Returns:
            True if this attempt is the first to finish; False if another one was.
        """
        target = self.stage_dir(draft.stage, draft.key) / MANIFEST
        temporary = target.with_name(f".manifest-{draft.attempt}-{os.getpid()}")
        with temporary.open("w") as file:
            file.write(manifest_text(draft))
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

    def _readable(self, paths: Iterable[Path]) -> Iterator[Manifest]:
        """Yield the manifests at `paths`; warn about those that cannot be read."""
        skipped = 0
        for path in paths:
            try:
                yield self._read(path)
            except FileNotFoundError:  # set aside meanwhile
                continue
            except (IntegrityError, ConfigError) as error:
                skipped += 1
                log.warning("a manifest is skipped: %s", error)
        if skipped:
            log.warning("%d manifest(s) in %s were skipped", skipped, self.root)

    def _read(self, path: Path) -> Manifest:
        """Read a manifest and check that it belongs to its folder."""
        manifest = read_manifest(path)
        expected = (path.parent.parent.name, path.parent.name)
        if (manifest.stage, manifest.key) != expected or not is_attempt(manifest.attempt):
            raise IntegrityError(
                f"{path}: expected the manifest of {'/'.join(expected)}, found that of "
                f"{manifest.stage}/{manifest.key}, attempt '{manifest.attempt}'; {REMEDY}"
            )
        return manifest
