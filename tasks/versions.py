"""Model versions: their names, tags and files, which are hard links to the artifact.

Contains the rules of the registry but does not import MLflow, so that importing it is fast.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict

from stages.configs.dotted_fields import texts_of
from stages.runtime.manifest import FileRecord, Manifest
from stages.runtime.stage_key import digest_of_file
from stages.runtime.store import Store
from training_core.errors import ConfigError, IntegrityError

log = logging.getLogger(__name__)

MODEL_SUFFIX = {
    "policy": "policy",
    "reward_model": "reward-model",
    "process_reward_model": "process-reward-model",
}
"""Artifact kind -> the part after the lifecycle in a registered model's name."""

RESERVED_ALIASES = ("champion", "candidate", "previous", "latest")
TAG_DIGITS = 12
"""Digits of stage keys and digests in tags, as many as in logs and job ids."""
KEY_LENGTH = 250  # MLflow's limit
PARAM_LENGTH = 250  # what its tables still show; the manifest has the whole value
CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


class ModelVersionRef(BaseModel):
    """A model version and the location of its files.

    Attributes:
        name: the registered model, e.g. `tiny.policy`.
        version: its number.
        stage: the stage that produced it.
        step: that stage's name in the flow.
        stage_key: key of the manifest in the store.
        digest: digest of the files, as in the manifest.
        run_id: the MLflow run with its curves.
        path: directory that `from_pretrained` loads in place.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    version: int
    stage: str
    step: str
    stage_key: str
    digest: str
    run_id: str
    path: Path

    @property
    def uri(self) -> str:
        """The address for MLflow's own functions."""
        return f"models:/{self.name}/{self.version}"


@dataclass(frozen=True)
class Entry:
    """A model version as an entry of a ledger; `at` is Unix time."""

    number: int
    tags: Mapping[str, str]
    at: float


def alias_of(step: str) -> str:
    """Return the alias that marks the newest version of `step`.

    Raises:
        ConfigError: if MLflow or the promotion ledger reserves the name.
    """
    alias = re.sub(r"[^a-z0-9_-]", "-", step.lower())
    if not alias or alias in RESERVED_ALIASES or re.fullmatch(r"v\d+", alias):
        kept = f"{', '.join(RESERVED_ALIASES)} and v<digits> are kept; rename the step"
        raise ConfigError(f"expected a step name that can be an alias, found '{step}'; {kept}")
    return alias


def tags_of(manifest: Manifest, step: str) -> dict[str, str]:
    """Return the tags of a model version: what made it.

    Key and digest are cut to what a person reads; the whole ones are in `source_of`.
    """
    return {
        "stage": manifest.stage,
        "step": step,
        "stage_key": manifest.key[:TAG_DIGITS],
        "digest": manifest.digest[:TAG_DIGITS],
    }


def source_of(manifest: Manifest, artifacts: str) -> str:
    """Return the address of a version's files: below its run's, by stage key and digest.

    With the digest, because a stage whose files were lost may give another result.
    """
    return f"{artifacts}/checkpoint/{manifest.key}/{manifest.digest}"


def identity_of(tags: Mapping[str, str], source: str) -> tuple[str, str]:
    """Return stage key and digest of a version.

    Versions of earlier releases have the whole ones as tags.
    """
    *_, key, digest = ("", "", *PurePosixPath(unquote(urlsplit(source).path)).parts)
    cut = tags.get("stage_key", ""), tags.get("digest", "")
    if cut == (key[:TAG_DIGITS], digest[:TAG_DIGITS]):
        return key, digest
    return cut


def params_of(manifest: Manifest) -> dict[str, str]:
    """Return the config as dotted keys, spelled for MLflow's parameters.

    Long values are cut, and fields without a value are left out.
    """
    return {
        re.sub(r"[^\w./ -]", "_", key)[:KEY_LENGTH]: value[:PARAM_LENGTH]
        for key, value in texts_of(manifest.config).items()
    }


def place_files(manifest: Manifest, source: Path, target: Path) -> None:
    """Make `target` a directory with the manifest's files, hard-linked to those in `source`.

    If the filesystem cannot link (another device, another owner), they are copied and this is
    logged. The directory appears in one step; if it has every file already, nothing happens.
    """
    if all(_has(target / r.path, r.size) for r in manifest.files):
        return
    draft = target.with_name(f".{target.name}.draft")
    for leftover in (draft, target):
        if leftover.exists():
            shutil.rmtree(leftover)
    for record in manifest.files:
        path = draft / record.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(source / record.path, path)
    draft.rename(target)


def verify(store: Store, ref: ModelVersionRef) -> None:
    """Check every byte of a version: its files in the store, and the loaded ones if copied.

    Raises:
        IntegrityError: if a file differs; the message names it.
    """
    manifest = store.find_digest(ref.stage, ref.stage_key, ref.digest)
    if manifest is None:
        raise IntegrityError(
            f"{ref.uri}: expected {ref.stage} {ref.stage_key[:12]} with digest {ref.digest[:12]} "
            f"in {store.root}, found none whose files are all there; run the flow that made it"
        )
    store.verify(manifest)
    for record in manifest.files:
        _check_same(ref.path / record.path, store.artifact_dir(manifest) / record.path, record)


def _check_same(loaded: Path, stored: Path, record: FileRecord) -> None:
    if not loaded.exists():
        raise IntegrityError(f"{loaded}: expected {record.size} bytes, found no file")
    if not loaded.samefile(stored) and (found := digest_of_file(loaded)) != record.sha256:
        raise IntegrityError(
            f"{loaded}: expected sha256 {record.sha256}, found {found}; "
            f"delete {loaded.parent} and run `ratchet resync`"
        )


def _has(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        log.warning("%s is copied to %s because it cannot be linked: %s", source, target, error)
        shutil.copy2(source, target)
