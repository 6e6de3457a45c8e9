"""Registered models of MLflow: versions, aliases, and ledgers, which consist of versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow.entities.model_registry import ModelVersion

from stages.runtime.store import Manifest, Store
from tasks.locks import claim
from tasks.registry.mlflow_connection import MlflowConnection, translated, unless_it_exists
from tasks.versions import (
    MODEL_SUFFIX,
    Entry,
    ModelVersionRef,
    metrics_of,
    place_files,
    tags_of,
)
from training_core.errors import ConfigError


class RegisteredModels:
    """The registered models of a server.

    Args:
        mlflow: the server.
        store: holds the files of their versions.
    """

    def __init__(self, mlflow: MlflowConnection, store: Store) -> None:
        self.mlflow, self._client, self._store = mlflow, mlflow.client, store

    # ------------------------------------------------------------------------- versions

    @translated
    def resolve(self, reference: str) -> ModelVersionRef:
        """Return the version that `models:/tiny.policy@champion` or `models:/tiny.policy/3` names.

        Raises:
            ConfigError: if there is none; the message lists all aliases and versions.
        """
        match = re.fullmatch(r"models:/([^/@:']+)(?:@([\w-]+)|/(\d+))", reference)
        if match is None:
            raise ConfigError(
                f"expected models:/<name>@<alias> or models:/<name>/<version>, found '{reference}'"
            )
        name, alias, number = match.groups()
        aliases = self.aliases(name)
        wanted = aliases.get(alias) if alias else int(number)
        versions = {int(v.version): v for v in self._search(name)}
        if wanted not in versions:
            raise ConfigError(
                f"there is no '{reference}'; {name} has aliases {aliases or 'none'} "
                f"and versions {sorted(versions) or 'none'}"
            )
        return _ref_of(versions[wanted])

    @translated
    def find_or_make(
        self, manifest: Manifest, lifecycle: str, step: str, run_id: str
    ) -> ModelVersionRef:
        """Return the version of a finished stage's model; create it if there is none.

        Args:
            manifest: manifest of the stage.
            lifecycle: e.g. `tiny`, with the models `tiny.policy` and `tiny.reward-model`.
            step: name of the stage in the lifecycle's flow.
            run_id: run of the stage; the files are linked into its artifacts.

        Raises:
            ConfigError: if MLflow's artifacts are not in a file:// folder.
        """
        name = f"{lifecycle}.{MODEL_SUFFIX[manifest.kind]}"
        artifacts = self._client.get_run(run_id).info.artifact_uri
        # With the digest, because a stage whose files were lost may give another result.
        source = f"{artifacts}/checkpoint/{manifest.digest[:12]}"
        where = f"tags.stage_key = '{manifest.key}' and tags.digest = '{manifest.digest}'"
        with claim(self._store.root, lifecycle, manifest.stage, manifest.key, step=step):
            place_files(manifest, self._store.artifact_dir(manifest), _local_path(source))
            if not self._search(name, where):
                self._ensure_model(name)
                tags = tags_of(manifest, step)
                self._client.create_model_version(name, source, run_id, tags, await_creation_for=0)
            return _ref_of(self._search(name, where)[0])

    @translated
    def newest(self, name: str, step: str) -> int:
        """Return the number of a step's newest version."""
        return max(int(v.version) for v in self._search(name, f"tags.step = '{step}'"))

    # ------------------------------------------------------------------------- aliases

    @translated
    def aliases(self, name: str) -> dict[str, int]:
        """Return the version number of each alias of a registered model; empty if there is none."""
        models = self._client.search_registered_models(f"name = '{name}'")
        return {alias: int(v) for model in models for alias, v in model.aliases.items()}

    @translated
    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias to this version; of two processes at once the last one wins."""
        self._client.set_registered_model_alias(name, alias, str(number))

    @translated
    def hold_alias(self, name: str, alias: str, wanted: Callable[[], int | None]) -> None:
        """Set an alias to `wanted()` and repeat until both are equal.

        MLflow has no compare-and-set. A slower process may set an outdated version; it then finds
        the difference here and sets the newer version.
        """
        while (number := wanted()) != self.aliases(name).get(alias):
            if number is None:
                self._client.delete_registered_model_alias(name, alias)
            else:
                with unless_it_exists():
                    self._client.set_registered_model_alias(name, alias, str(number))

    # ------------------------------------------------------------------------- ledgers

    @translated
    def append(self, name: str, source: str, tags: Mapping[str, str]) -> None:
        """Append an entry to the ledger `name`; the server numbers entries in order of arrival."""
        self._ensure_model(name)
        self._client.create_model_version(name, source, tags=dict(tags), await_creation_for=0)

    @translated
    def entries(self, name: str) -> list[Entry]:
        """Return the entries of the ledger `name` in their order."""
        return [
            Entry(int(v.version), v.tags, v.creation_timestamp / 1000) for v in self._search(name)
        ]

    # -------------------------------------------------------------------------- private

    def _search(self, name: str, where: str = "") -> list[ModelVersion]:
        """Return versions in order; if a retried request created two, the first counts."""
        query = f"name = '{name}'" + (f" and {where}" if where else "")
        found: list[ModelVersion] = []
        token = None
        while True:
            page = self._client.search_model_versions(
                query, order_by=["version_number ASC"], page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    def _ensure_model(self, name: str) -> None:
        if not self._client.search_registered_models(f"name = '{name}'"):
            with unless_it_exists():
                self._client.create_registered_model(name)


def _ref_of(version: ModelVersion) -> ModelVersionRef:
    needed = {"stage", "step", "stage_key", "digest"}
    if missing := needed - version.tags.keys():
        raise ConfigError(
            f"models:/{version.name}/{version.version} was not registered by Ratchet: "
            f"expected the tags {sorted(needed)}, found none of {sorted(missing)}"
        )
    return ModelVersionRef(
        name=version.name,
        version=int(version.version),
        run_id=version.run_id or "",
        path=_local_path(version.source or ""),
        metrics=metrics_of(version.tags),
        **{name: version.tags[name] for name in needed},
    )


def _local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigError(
            f"expected artifacts in a file:// folder, found {uri}; "
            "give the lifecycle another name, so that Ratchet makes its MLflow experiment itself"
        )
    return Path(unquote(parts.path))
