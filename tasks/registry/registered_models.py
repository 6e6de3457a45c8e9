"""Registered models of MLflow: versions, aliases, and ledgers, which consist of versions.

MLflow reads all versions of a model to describe it. So a model's name is never looked up itself,
except for an error message: an old model has thousands of versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from stages.runtime.manifest import Manifest
from stages.runtime.store import Store
from tasks.locks import claim
from tasks.registry.descriptions import model_note, version_note, with_decision
from tasks.registry.mlflow_connection import MlflowConnection, translated, unless_it_exists
from tasks.versions import (
    MODEL_SUFFIX,
    TAG_DIGITS,
    Entry,
    ModelVersionRef,
    alias_of,
    identity_of,
    place_files,
    source_of,
    tags_of,
)
from training_core.errors import ConfigError
from training_core.names import require_name

NEWEST_PAGE, WHOLE_PAGE = 20, 10_000
"""Versions in one answer of the server: when looking for the newest, and for all."""


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
            ConfigError: if there is none; the message lists all aliases.
        """
        match = re.fullmatch(r"models:/([^/@:']+)(?:@([\w-]+)|/(\d+))", reference)
        if match is None:
            raise ConfigError(
                f"expected models:/<name>@<alias> or models:/<name>/<version>, found '{reference}'"
            )
        name, alias, number = match.groups()
        version = self._at_alias(name, alias) if alias else self._version(name, int(number))
        if version is None:
            raise ConfigError(self._absent(reference, name))
        return _ref_of(version)

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
        source = source_of(manifest, self._client.get_run(run_id).info.artifact_uri or "")
        with claim(self._store.root, lifecycle, manifest.stage, manifest.key, step=step):
            files = self._store.artifact_dir(manifest)
            found = self._of_manifest(name, manifest)
            place_files(manifest, files, _ref_of(found[0]).path if found else _local_path(source))
            if not found:
                note = version_note(self._store.root, lifecycle, manifest, step)
                self._create(name, source, tags_of(manifest, step), note, run_id)
                found = self._of_manifest(name, manifest)
            return _ref_of(found[0])

    @translated
    def find(self, name: str, number: int, manifest: Manifest) -> ModelVersionRef | None:
        """Return this version if it is that of `manifest` and complete, else None.

        Links its files again if they are gone, and sets its step's alias if no version has it.
        """
        version = self._version(name, number)
        if version is None or _identity(version) != (manifest.key, manifest.digest):
            return None
        ref = _ref_of(version)
        place_files(manifest, self._store.artifact_dir(manifest), ref.path)
        alias = alias_of(ref.step)
        if alias not in version.aliases:
            self.hold_aliases(name, lambda: {alias: self.newest(name, ref.step)})
        return ref

    @translated
    def newest(self, name: str, step: str) -> int | None:
        """Return the number of a step's newest version; None if it has none."""
        numbers = (int(v.version) for v in self._newest_first(name) if v.tags.get("step") == step)
        return next(numbers, None)

    # ------------------------------------------------------------------------- aliases

    @translated
    def aliases(self, name: str) -> dict[str, int]:
        """Return the version number of each alias of a registered model; empty if there is none."""
        models = self._client.search_registered_models(f"name = '{name}'")
        return {alias: int(v) for model in models for alias, v in model.aliases.items()}

    @translated
    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias to this version; of two processes at once the last one wins."""
        self.mlflow.aliases.set_registered_model_alias(name, alias, str(number))

    @translated
    def hold_aliases(self, name: str, wanted: Callable[[], Mapping[str, int | None]]) -> None:
        """Set aliases to the numbers of `wanted()` and repeat until they are equal.

        MLflow has no compare-and-set. A slower process may set an outdated version; it then finds
        the difference here and sets the newer version.
        """
        while stale := {a: n for a, n in wanted().items() if n != self._number_at(name, a)}:
            for alias, number in stale.items():
                if number is None:
                    self.mlflow.aliases.delete_registered_model_alias(name, alias)
                else:
                    with unless_it_exists():
                        self.mlflow.aliases.set_registered_model_alias(name, alias, str(number))

    # ------------------------------------------------------------------------- ledgers

    @translated
    def append(self, name: str, source: str, tags: Mapping[str, str], note: str = "") -> None:
        """Append an entry to the ledger `name`; the server numbers entries in order of arrival.

        Args:
            name: of the ledger.
            source: address of the version that the entry is about.
            tags: of the entry.
            note: its description for people, as Markdown.
        """
        self._create(name, source, tags, note)

    @translated
    def note_decision(self, name: str, number: int, verdict: str, decision: str) -> None:
        """Write the last decision about a version into its tag `verdict` and its description.

        Args:
            name: of the registered model.
            number: of the version.
            verdict: one of `tasks.decisions.SAID`.
            decision: the whole decision for people, as Markdown.
        """
        version = self._client.get_model_version(name, str(number))
        note = with_decision(version.description or "", decision)
        self._client.update_model_version(name, str(number), note)
        self._client.set_model_version_tag(name, str(number), "verdict", verdict)

    @translated
    def entries(self, name: str) -> list[Entry]:
        """Return the entries of the ledger `name` in their order."""
        versions = self._search(f"name = '{name}'", "ASC", WHOLE_PAGE)
        return [Entry(int(v.version), v.tags, v.creation_timestamp / 1000) for v in versions]

    # -------------------------------------------------------------------------- private

    def _version(self, name: str, number: int) -> ModelVersion | None:
        try:
            return self._client.get_model_version(name, str(number))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _at_alias(self, name: str, alias: str) -> ModelVersion | None:
        try:
            return self._client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            # The first if there is no such model, the second if it has no such alias.
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return None

    def _number_at(self, name: str, alias: str) -> int | None:
        version = self._at_alias(name, alias)
        return int(version.version) if version else None

    def _absent(self, reference: str, name: str) -> str:
        newest = next(self._newest_first(name), None)
        versions = f"versions up to {newest.version}" if newest else "no versions"
        return (
            f"there is no '{reference}'; {name} has aliases {self.aliases(name) or 'none'} "
            f"and {versions}"
        )

    def _of_manifest(self, name: str, manifest: Manifest) -> list[ModelVersion]:
        """Return the versions of a result; if a retried request created two, the first counts."""
        # Versions of earlier releases have the whole key as tag.
        start = manifest.key[:TAG_DIGITS]
        query = f"name = '{name}' and tags.stage_key LIKE '{start}%'"
        found = self._search(query, "ASC", WHOLE_PAGE)
        wanted = manifest.key, manifest.digest
        return [version for version in found if _identity(version) == wanted]

    def _newest_first(self, name: str) -> Iterator[ModelVersion]:
        """Yield versions in small pages, so that the server reads few of them."""
        return self._search(f"name = '{name}'", "DESC", NEWEST_PAGE)

    def _search(self, query: str, order: str, page_size: int) -> Iterator[ModelVersion]:
        """Yield versions in the order of their numbers; ask for a page when it is needed."""
        token = None
        while True:
            page = self._client.search_model_versions(
                query, page_size, order_by=[f"version_number {order}"], page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def _create(
        self, name: str, source: str, tags: Mapping[str, str], note: str, run_id: str | None = None
    ) -> None:
        """Create a version, and the registered model with its first version."""
        create = partial(
            self._client.create_model_version,
            name,
            source,
            run_id,
            dict(tags),
            description=note,
            await_creation_for=0,
        )
        try:
            create()
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            with unless_it_exists():
                self._client.create_registered_model(name, description=model_note(name))
            create()


def _ref_of(version: ModelVersion) -> ModelVersionRef:
    needed = {"stage", "step", "stage_key", "digest"}
    if missing := needed - version.tags.keys():
        raise ConfigError(
            f"models:/{version.name}/{version.version} was not registered by Ratchet: "
            f"expected the tags {sorted(needed)}, found none of {sorted(missing)}"
        )
    for tag in sorted(needed):  # stage and step become parts of a path, too
        require_name(
            f"the tag '{tag}' of models:/{version.name}/{version.version}",
            version.tags[tag],
            remedy="someone changed the tag; register the model again with `ratchet resync`",
        )
    key, digest = _identity(version)
    return ModelVersionRef(
        name=version.name,
        version=int(version.version),
        stage=version.tags["stage"],
        step=version.tags["step"],
        stage_key=require_name("stage key", key),
        digest=digest,
        run_id=version.run_id or "",
        path=_local_path(version.source or ""),
    )


def _identity(version: ModelVersion) -> tuple[str, str]:
    return identity_of(version.tags, version.source or "")


def _local_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigError(
            f"expected artifacts in a file:// folder, found {uri}; "
            "give the lifecycle another name, so that Ratchet makes its MLflow experiment itself"
        )
    return Path(unquote(parts.path))
