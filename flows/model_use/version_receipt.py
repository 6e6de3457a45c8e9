"""The receipt of a result: all that is needed to make it again, from the base model on.

It is made from the manifests, which the stages themselves wrote when they finished. So it says what
was read at that time, not what a preset or a dataset is today.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.runtime.manifest import FileRecord, Manifest
from stages.runtime.store import Store
from stages.runtime.store_graph import StoreGraph
from training_core.errors import ConfigError
from training_core.strict_json import read_object

SCHEMA = 1
PRIVATE = ("host", "ray_job")
"""Parts of a manifest's environment that say nothing about the result."""


class MadeStage(BaseModel):
    """One stage of a receipt; the fields are those of its manifest.

    Attributes:
        data_digests: digest of each file, folder and function that it read, by field.
        inputs: by role, the key of the stage whose result it took.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    step: str
    stage: str
    version: int
    key: str
    kind: str
    config: dict[str, Any]
    data_digests: dict[str, str]
    inputs: dict[str, str]
    digest: str
    files: tuple[FileRecord, ...]
    metrics: dict[str, float]
    environment: dict[str, str]
    cost: dict[str, float]


class VersionReceipt(BaseModel):
    """How a result was made.

    Attributes:
        receipt_schema: version of this format.
        result: the name by which a person asked for it.
        stages: from the base model to the result, each after its inputs.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    receipt_schema: int = SCHEMA
    result: str
    stages: tuple[MadeStage, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a receipt from a file.

        Raises:
            ConfigError: if there is no such file, or it is not a receipt.
            IntegrityError: if it is not JSON.
        """
        try:
            content = read_object(path, remedy="write it again with `ratchet receipt`")
            return cls.model_validate_json(json.dumps(content), strict=True)
        except FileNotFoundError as error:
            raise ConfigError(f"there is no receipt {path}; correct the path") from error
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{path} is not a receipt of `ratchet receipt`: {field}: {first['msg']}"
            ) from error

    def text(self) -> str:
        """Return the receipt as JSON."""
        return json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False) + "\n"


def receipt_of(result: str, own: Manifest, store: Store) -> VersionReceipt:
    """Write the receipt of a finished stage.

    Args:
        result: how a person named it.
        own: its manifest.
        store: has the manifests of all stages before it.

    Raises:
        ConfigError: if the store no longer has one of them, or only one that was made anew since.
    """
    made = StoreGraph.of(store).before(own)
    for stage in made:
        _require_inputs(stage, made)
    return VersionReceipt(result=result, stages=tuple(map(_stage, made)))


def _require_inputs(stage: Manifest, made: list[Manifest]) -> None:
    digests = {one.key: one.digest for one in made}
    for role, key in stage.parents.items():
        if digests.get(key) != stage.input_digests[role]:
            found = "another result" if key in digests else "none"
            raise ConfigError(
                f"step '{stage.step}' took the result {stage.input_digests[role][:12]} of the "
                f"stage key {key[:12]} as its {role}, and the store has {found}, so the receipt "
                "would not be whole; use the store of its lifecycle"
            )


def _stage(made: Manifest) -> MadeStage:
    data = {name: d for name, d in made.input_digests.items() if name not in made.parents}
    facts = {name: fact for name, fact in made.environment.items() if name not in PRIVATE}
    return MadeStage(
        step=made.step,
        stage=made.stage,
        version=made.version,
        key=made.key,
        kind=made.kind,
        config=made.config,
        data_digests=data,
        inputs=made.parents,
        digest=made.digest,
        files=made.files,
        metrics=made.metrics,
        environment=facts,
        cost=made.cost,
    )
