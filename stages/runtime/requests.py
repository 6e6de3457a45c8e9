"""The request of a stage's process: read, and checked before the stage starts."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from stages.attempt import Attempt, is_attempt
from stages.catalog import find_stage
from stages.configs.block import StageConfig
from stages.configs.explanation import explain
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_key import digest_of_tree
from stages.runtime.store import Request
from training_core.errors import ConfigError, IntegrityError
from training_core.names import require_name
from training_core.strict_json import read_object

REMEDY = "a flow writes this file; run the flow again"
RESTORE = "restore its files and remove others, or run the flow that made it again"
PLACE = "<store>/stages/<stage>/<stage key>/attempts/a<number>/request.json"


def attempt_of(path: Path) -> Attempt:
    """Return the attempt of a request file.

    Raises:
        ConfigError: if the file does not exist or is not in a store.
    """
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"there is no request file {path}; correct the path")
    folders = [folder.name for folder in path.parents]
    is_in_store = (
        len(folders) > 5  # noqa: PLR2004 - the folders of `PLACE`
        and (folders[1], folders[4]) == ("attempts", "stages")
        and is_attempt(folders[0])
    )
    if not is_in_store:
        raise ConfigError(
            f"expected a request at {PLACE}, found {path}; run a stage by itself with "
            "`python -m stages <stage> <config>`"
        )
    return Attempt(path.parent)


def read_request(path: Path) -> Request:
    """Read a request.

    Raises:
        IntegrityError: if the file is not JSON.
        ConfigError: if it is not a request.
    """
    content = read_object(path, remedy=REMEDY)
    try:
        request = Request.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path}:\n  {explain(error, Request)}\n{REMEDY}") from error
    for what, name in (
        ("stage", request.stage),
        ("step", request.step),
        ("key", request.key),
        *((f"inputs.{role}", role) for role in request.inputs),
    ):
        require_name(f"{path}: {what}", name, remedy=REMEDY)
    return request


def config_of(request: Request) -> StageConfig:
    """Return the validated config of a request.

    Raises:
        ConfigError: if there is no such stage, or its config is wrong.
    """
    spec = find_stage(request.stage)
    try:
        return spec.config.model_validate(request.config)
    except ValidationError as error:
        raise ConfigError(
            f"the request's config of stage '{spec.name}' is not valid:\n  "
            f"{explain(error, spec.config)}"
        ) from error


def require_consistent(request: Request, attempt: Attempt) -> None:
    """Check that the request lies in the folder of its stage and key, and has the stage's inputs.

    Raises:
        ConfigError: if it does not.
    """
    find_stage(request.stage).require_roles(request.inputs)
    if (request.stage, request.key) != (attempt.stage, attempt.key):
        raise ConfigError(
            f"{attempt.request}: expected the request of {attempt.stage}/{attempt.key}, found that "
            f"of {request.stage}/{request.key}; {REMEDY}"
        )


def require_unchanged_inputs(request: Request, config: StageConfig) -> None:
    """Compare everything that the stage will read with the digests in its request.

    Raises:
        DataError: if a file or directory does not exist.
        IntegrityError: if one was changed after the request was written; the message names it.
    """
    for role, folder in request.inputs.items():
        if not Path(folder).is_dir():
            raise IntegrityError(
                f"input '{role}': expected the directory {folder}, found none; {RESTORE}"
            )
        _require_digest(request, role, digest_of_tree(Path(folder)), RESTORE)
    for field, digest in digests_of_sources(config).items():
        _require_digest(request, field, digest, "run the flow again, which uses what it is now")


def _require_digest(request: Request, name: str, found: str, remedy: str) -> None:
    expected = request.input_digests.get(name)
    if found != expected:
        raise IntegrityError(
            f"input '{name}' was changed after the run started: expected the digest "
            f"{expected!s:.12}, found {found:.12}; {remedy}"
        )
