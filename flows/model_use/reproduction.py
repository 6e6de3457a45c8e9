"""Make the stages of a receipt again, one after another, and compare what they make with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from flows.model_use.version_receipt import PRIVATE, MadeStage, VersionReceipt
from stages.catalog import find_stage
from stages.configs.block import StageConfig
from stages.configs.explanation import explain
from stages.configs.stage_record import StageRecord
from stages.runtime.local_run import run_here
from stages.runtime.manifest import Manifest
from stages.runtime.sources import digests_of_sources
from stages.runtime.stage_key import stage_key
from stages.runtime.store import Request, Store
from training_core.errors import ConfigError, DataError

SHORT = 12


@dataclass(frozen=True)
class MadeAgain:
    """A stage that was made again.

    Attributes:
        expected: as in the receipt.
        found: what was made now.
    """

    expected: MadeStage
    found: Manifest

    @property
    def is_same(self) -> bool:
        """Whether every byte of the result is as in the receipt."""
        return self.expected.digest == self.found.digest

    def differences(self) -> Iterator[str]:
        """Describe how the result differs, and what else did: files, metrics, packages, machine."""
        before = {record.path: record.sha256 for record in self.expected.files}
        now = {record.path: record.sha256 for record in self.found.files}
        for path in sorted(before.keys() | now.keys()):
            if before.get(path) != now.get(path):
                told = (sha[:SHORT] if sha else "none" for sha in (before.get(path), now.get(path)))
                yield f"file {path}: expected {' and found '.join(told)}"
        yield from _changes("metric", self.expected.metrics, self.found.metrics)
        facts = {n: f for n, f in self.found.environment.items() if n not in PRIVATE}
        yield from _changes("made with", self.expected.environment, facts)


def make_again(
    receipt: VersionReceipt, store: Store, places: Mapping[str, str] | None = None
) -> Iterator[MadeAgain]:
    """Make each stage again and yield it; the caller decides whether to go on.

    A stage that the store has already, from a reproduction that was interrupted, is not made again.

    Args:
        receipt: of the result.
        store: gets the results; it should have nothing else.
        places: beginning of a path in the receipt -> where that is here.

    Raises:
        ConfigError: if this version of Ratchet cannot make a stage as it was made.
        DataError: if data is not there, or is not what was read then.
        LocalRunError: if a stage fails.
    """
    made: dict[str, Manifest] = {}
    for stage in receipt.stages:
        spec, config = _config_of(stage, places or {})
        request = _request_for(stage, spec, config, made, store)
        made[stage.key] = run_here(store, request)
        yield MadeAgain(stage, made[stage.key])


def _config_of(stage: MadeStage, places: Mapping[str, str]) -> tuple[StageRecord, StageConfig]:
    spec = find_stage(stage.stage)
    if spec.version != stage.version:
        raise ConfigError(
            f"step '{stage.step}' was made by version {stage.version} of the stage '{spec.name}', "
            f"and this Ratchet has version {spec.version}, whose results differ; use "
            f"{_ratchet_of(stage)}"
        )
    try:
        return spec, spec.config.model_validate(_moved(stage.config, places))
    except ValidationError as error:
        told = explain(error, spec.config)
        raise ConfigError(
            f"the config of step '{stage.step}' in the receipt is not one of this Ratchet; use "
            f"{_ratchet_of(stage)}:\n  {told}"
        ) from error


def _ratchet_of(stage: MadeStage) -> str:
    version = stage.environment.get("ratchet-rlhf", "the version that made it")
    commit = stage.environment.get("commit")
    return f"Ratchet {version}" + (f" at commit {commit}" if commit else "")


def _request_for(
    stage: MadeStage,
    spec: StageRecord,
    config: StageConfig,
    made: Mapping[str, Manifest],
    store: Store,
) -> Request:
    data = digests_of_sources(config)
    for field, expected in stage.data_digests.items():
        if (found := data.get(field)) != expected:
            raise DataError(
                f"step '{stage.step}', {field}: expected the data with the digest "
                f"{expected[:SHORT]}, found {str(found)[:SHORT]}; restore what was read then"
            )
    inputs = {role: made[key] for role, key in stage.inputs.items()}
    digests = {role: manifest.digest for role, manifest in inputs.items()} | data
    return Request(
        stage=stage.stage,
        step=stage.step,
        key=stage_key(spec, config, digests),
        config=config.model_dump(mode="json"),
        inputs={role: str(store.artifact_dir(manifest)) for role, manifest in inputs.items()},
        input_digests=digests,
        parents={role: manifest.key for role, manifest in inputs.items()},
    )


def _moved(value: object, places: Mapping[str, str]) -> object:
    """Return a config in which every text that begins with one of the places is elsewhere."""
    if isinstance(value, Mapping):
        return {key: _moved(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(item, places) for item in value]
    if isinstance(value, str):
        for old, new in places.items():
            if value == old or value.startswith(f"{old.rstrip('/')}/"):
                return new + value.removeprefix(old)
    return value


def _changes(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{what} {name}: expected {before.get(name)}, found {now.get(name)}"
