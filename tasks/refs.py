"""References of a flow to finished stages: names, digests and numbers, never a path."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from stages.configs.stage_record import ArtifactKind
from stages.runtime.manifest import Manifest


class StageRef(BaseModel):
    """A finished stage.

    Attributes:
        stage: the stage's name.
        step: its name in this flow.
        key: the stage key.
        digest: digest of the artifact.
        kind: kind of the artifact.
        metrics: metrics of the manifest.
        seconds: wall-clock time of the attempt that produced it.
        is_reused: whether it had finished before, so that this flow did not run it.
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


def pending_ref(stage: str, step: str, kind: ArtifactKind) -> StageRef:
    """Build the ref of a step that has not run, for a flow that only plans."""
    return StageRef(
        stage=stage,
        step=step,
        key=PENDING,
        digest=PENDING,
        kind=kind,
        metrics={},
        seconds=0.0,
        is_reused=False,
    )


def ref_of(manifest: Manifest, step: str, *, is_reused: bool) -> StageRef:
    """Build the ref of a manifest, with the name of the step in this flow."""
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
