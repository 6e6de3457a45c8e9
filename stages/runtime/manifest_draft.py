"""The manifest of an attempt's output, before it is published."""

from __future__ import annotations

import math
import time

from stages.attempt import Attempt
from stages.canaries.canary_results import read_results
from stages.catalog import find_stage
from stages.configs.block import StageConfig
from stages.configs.placement_config import cpus_apart, reserved_gpus
from stages.configs.stage_record import ArtifactKind, StageRecord
from stages.contract import Result
from stages.files import read_jsonl
from stages.runtime.machine_facts import environment_facts
from stages.runtime.manifest import Manifest, record_files
from stages.runtime.store import Request
from training_core.errors import NonFiniteError

MODELS: tuple[ArtifactKind, ...] = ("policy", "reward_model", "process_reward_model")


def draft_manifest(
    request: Request, config: StageConfig, result: Result, attempt: Attempt, *, started: float
) -> Manifest:
    """Describe the output of a stage; its files are first written to disk with fsync.

    Args:
        request: request of the attempt.
        config: validated.
        result: returned by the stage.
        attempt: holds the artifact.
        started: Unix time at which the process started.

    Raises:
        NonFiniteError: if a metric of the result is NaN or infinite.
    """
    if broken := [name for name, value in result.metrics.items() if not math.isfinite(value)]:
        raise NonFiniteError(f"metrics {broken} of the result are NaN or infinite")
    spec = find_stage(request.stage)
    files, digest = record_files(attempt.artifact)
    seconds, resources = time.time() - started, config.resources
    workers = resources.num_workers
    return Manifest(
        stage=request.stage,
        step=request.step,
        version=spec.version,
        key=request.key,
        kind=spec.makes,
        attempt=attempt.name,
        config=config.model_dump(mode="json"),
        input_digests=request.input_digests,
        parents=request.parents,
        files=files,
        digest=digest,
        metrics=dict(result.metrics),
        contract=_contract(attempt, spec),
        canaries=tuple(read_results(attempt) or ()),
        environment=environment_facts(),
        cost={
            "seconds": seconds,
            "cpu_seconds": seconds * (workers * resources.num_cpus + cpus_apart(config)),
            "gpu_seconds": seconds * reserved_gpus(config),
            "trained_tokens": _trained_tokens(request.stage, attempt),
            "sampled_tokens": float(result.sampled_tokens),
        },
        finished_at=time.time(),
    )


def _trained_tokens(stage: str, attempt: Attempt) -> float:
    """Add up the tokens of all optimizer steps; the curve has those of earlier attempts, too."""
    curve = read_jsonl(attempt.metrics) if attempt.metrics.exists() else []
    return float(sum(line["metrics"].get(f"{stage}/tokens", 0) for line in curve))


def _contract(attempt: Attempt, spec: StageRecord) -> dict[str, str]:
    """Describe the model that a stage made; empty for data."""
    if spec.makes not in MODELS:
        return {}
    from training_core.models.model_contract import (
        contract_of,
    )

    return contract_of(attempt.artifact)
