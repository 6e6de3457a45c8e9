"""The manifest of a finished stage, and the list of its artifact's files.

The file `manifest.json` ends with `content_digest`, a digest of everything else in it: metrics
decide about promotions, so a changed number must be found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from stages.configs.canary_record import CanaryRecord
from stages.configs.stage_record import ArtifactKind
from stages.runtime.stage_key import digest_of, digest_of_file, visible_files
from training_core.errors import ConfigError, IntegrityError
from training_core.names import checked_file, checked_name
from training_core.strict_json import read_object

SCHEMA_VERSION = 2
"""Manifests of schema 1, of Ratchet before this field, have no `content_digest`."""

CONTENT_DIGEST = "content_digest"
REMEDY = "restore the file, or delete it to run the stage again"

Name = Annotated[str, AfterValidator(checked_name)]


class FileRecord(BaseModel):
    """One file of an artifact; `path` is relative to the artifact's directory."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    path: Annotated[str, AfterValidator(checked_file)]
    size: int
    sha256: str


class Manifest(BaseModel):
    """The record of a finished stage.

    Attributes:
        schema_version: version of this record.
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
        canaries: results of the checks before the first step; empty for a stage without them.
        contract: what the model expects of those who use it; empty for data.
        environment: versions of packages, the host and the Ray job.
        cost: wall-clock seconds, reserved hardware, and tokens.
        finished_at: Unix time.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    schema_version: int = SCHEMA_VERSION
    stage: Name
    step: Name
    version: int
    key: Name
    kind: ArtifactKind
    attempt: str
    config: dict[str, Any]
    input_digests: dict[str, str]
    parents: dict[str, str]
    files: tuple[FileRecord, ...]
    digest: str
    metrics: dict[str, float]
    canaries: tuple[CanaryRecord, ...] = ()
    contract: dict[str, str] = {}
    environment: dict[str, str]
    cost: dict[str, float]
    finished_at: float


def manifest_text(manifest: Manifest) -> str:
    """Return the content of `manifest.json`."""
    content = manifest.model_dump(mode="json")
    return json.dumps({**content, CONTENT_DIGEST: digest_of(content)}, indent=2, allow_nan=False)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check its content against its digests.

    Raises:
        FileNotFoundError: if there is none.
        IntegrityError: if it is not a manifest, or was changed; the message names the file.
        ConfigError: if a later version of Ratchet wrote it.
    """
    content = read_object(path, remedy=REMEDY)
    schema = content.get("schema_version", 1)
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: expected a manifest of schema {SCHEMA_VERSION} or lower, found {schema}: a "
            "later version of Ratchet wrote it; update Ratchet, or use another store"
        )
    recorded = content.pop(CONTENT_DIGEST, None)
    try:
        manifest = Manifest.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise IntegrityError(f"{path}: {field}: {first['msg']}; {REMEDY}") from error
    is_sealed = recorded is not None or schema != 1
    if is_sealed and recorded != (found := digest_of(content)):
        raise IntegrityError(
            f"{path}: expected the {CONTENT_DIGEST} {recorded!r:.80}, found {found}: "
            f"its content was changed; {REMEDY}"
        )
    if manifest.digest != digest_of_records(manifest.files):
        raise IntegrityError(f"{path}: its `digest` is not that of its `files`; {REMEDY}")
    return manifest


def record_files(directory: Path) -> tuple[tuple[FileRecord, ...], str]:
    """Write every file below `directory` to disk with fsync; return their records and digest."""
    records = []
    for path in visible_files(directory):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        relative = path.relative_to(directory).as_posix()
        records.append(
            FileRecord(path=relative, size=path.stat().st_size, sha256=digest_of_file(path))
        )
    return tuple(records), digest_of_records(records)


def digest_of_records(files: Sequence[FileRecord]) -> str:
    """Return the digest of an artifact; the same as `digest_of_tree` of its directory."""
    return digest_of([[record.path, record.sha256] for record in files])
