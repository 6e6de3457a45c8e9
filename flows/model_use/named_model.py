"""Find the model that a person names: a registered version, a directory, or a hub id."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flows.local_services.environment import client_environment
from flows.local_services.paths import home_folder
from flows.local_services.state import load_records
from stages.runtime.stage_key import digest_of_tree
from tasks.versions import MODEL_SUFFIX, ModelVersionRef, verify
from training_core.errors import ConfigError, DataError
from training_core.models.folders import is_hub_id

if TYPE_CHECKING:
    from tasks.connections import Connections

REGISTERED = re.compile(r"(models:/)?([^/@:']+)(?:@[\w-]+|/\d+)")
TEXT_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.spm"]


@dataclass(frozen=True)
class NamedModel:
    """A model that a person has named.

    Attributes:
        name: `models:/…/7` for a registered version, otherwise what the person wrote.
        directory: its files.
        version: the registered version; None for a directory and a hub id.
    """

    name: str
    directory: Path
    version: ModelVersionRef | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of its files, by which two runs of a command see that the model is the same."""
        return self.version.digest if self.version else digest_of_tree(self.directory)


def find_model(name: str, kind: str = "policy") -> NamedModel:
    """Find a model.

    Args:
        name: a directory; `sums@champion` or `sums/7` for an alias or a version of the registered
            model `sums.policy`, also as `models:/sums.policy@champion`; or an id of the hub. What
            is a directory here is read as one.
        kind: policy, reward_model or process_reward_model: which model of a lifecycle is meant.

    Raises:
        ConfigError: if there is no such model, or the registry is not known.
        DataError: if it is neither on the hub nor in the local cache of the hub.
        IntegrityError: if the files of a registered model are damaged.
    """
    if Path(name).is_dir():
        return NamedModel(name, Path(name).resolve())
    if REGISTERED.fullmatch(name):
        return _registered(whole_reference(name, kind))
    if is_hub_id(name):
        return NamedModel(name, _download(name))
    raise ConfigError(
        "expected a directory, <lifecycle>@<alias> (e.g. sums@champion), <lifecycle>/<version>, "
        f"models:/<name>@<alias> or an id of the hub, found '{name}'"
    )


def connections_here() -> Connections:
    """Connect to the services of the environment, or else to those of `ratchet up`.

    Raises:
        ConfigError: if neither knows a registry.
    """
    from tasks.connections import connect  # noqa: PLC0415 - imports mlflow

    return connect(_addresses())


def knows_services() -> bool:
    """Whether `ratchet up` was ever run here, or the environment names a registry."""
    return "MLFLOW_TRACKING_URI" in _addresses()


def _addresses() -> dict[str, str]:
    home = home_folder()
    records = load_records(home)
    local = client_environment(home, records) if records.services else {}
    return {**local, **os.environ}


def whole_reference(name: str, kind: str = "policy") -> str:
    """Return `models:/sums.policy@champion` for `sums@champion`; see `find_model`."""
    match = REGISTERED.fullmatch(name)
    assert match is not None  # the caller has looked
    prefix, model = match.groups()
    if prefix:
        return name
    is_whole = model.endswith(tuple(f".{suffix}" for suffix in MODEL_SUFFIX.values()))
    whole = model if is_whole else f"{model}.{MODEL_SUFFIX[kind]}"
    return f"models:/{whole}{name.removeprefix(model)}"


def _registered(reference: str) -> NamedModel:
    connections = connections_here()
    version = connections.registry.models.resolve(reference)
    verify(connections.store, version)
    return NamedModel(version.uri, version.path, version)


def _download(repo: str) -> Path:
    """Return the folder of a hub model in the local cache, after downloading what is missing."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for a hub id
    from huggingface_hub.utils import httpx  # noqa: PLC0415 - likewise

    try:
        for weights in ("*.safetensors", "*.bin"):
            patterns = [*TEXT_FILES, weights]
            folder = Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=["*/*"]))
            if any(folder.glob(weights)):
                break
    except (httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{repo} is no directory, and it could not be read from the hub or its local cache "
            f"({reason}); check the name, your HF_TOKEN and the network"
        ) from error
    return folder
