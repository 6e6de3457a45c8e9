"""What a flow holds of a finished stage: names, digests and numbers, never a path."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.configs.stage_record import ArtifactKind
from stages.runtime.store import Manifest


class StageRef(BaseModel):
    """A finished stage.

    Attributes:
        stage: the stage's name.
        step: its name in this flow.
        key: the stage key.
        digest: of what was made.
        kind: what was made.
        metrics: the manifest's.
        seconds: wall-clock time that the attempt took which made it.
        is_reused: found finished, not run by this flow.
        model_version: number in the registry, for models.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, protected_namespaces=())

    stage: str
    step: str
    key: str
    digest: str
    kind: ArtifactKind
    metrics: dict[str, float]
    seconds: float
    is_reused: bool
    model_version: int | None = None


PENDING = "pending"
"""Key and digest of a step that is not done."""


def pending_ref(stage: str, step: str) -> StageRef:
    """Build the ref of a step whose result nobody knows yet, for what only looks at a recipe."""
    return StageRef(
        stage=stage,
        step=step,
        key=PENDING,
        digest=PENDING,
        kind="dataset",
        metrics={},
        seconds=0.0,
        is_reused=False,
    )


def ref_of(manifest: Manifest, step: str, *, is_reused: bool) -> StageRef:
    """Build the ref of a manifest, under the name that this flow calls it by."""
    return StageRef(
        stage=manifest.stage,
        step=step,
        key=manifest.key,
        digest=manifest.digest,
        kind=manifest.kind,
        metrics=manifest.metrics,
        seconds=manifest.cost["seconds"],
        is_reused=is_reused,
    )
