"""Where the rollout engines and the reward of a stage run.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from stages.configs.block import Block, StageConfig, operational
from stages.configs.tree import blocks_at

MAX_ENGINES = 64
"""Limit of rollout engines, each with a copy of the policy."""


class InlineConfig(Block):
    """The engine is in the process of the stage; with several workers each has one."""

    name: Literal["inline"] = operational("inline", "Name of the placement.")


class ProcessConfig(Block):
    """The fields of every placement whose engines have processes of their own."""

    engines: int = operational(
        1,
        "Number of engines; they share the work in blocks of 128 responses.",
        gt=0,
        le=MAX_ENGINES,
    )
    silence_seconds: float = operational(
        600.0,
        "Limit of the time in which an engine with work shows no progress, e.g. no further token. "
        "It is then killed and replaced. Opening the model and one weight sync must take less.",
        gt=0,
        le=86_400,
    )


class ColocatedConfig(ProcessConfig):
    """Each worker has engines on its machine, which use its GPUs and share its `num_cpus`."""

    name: Literal["colocated"] = operational("colocated", "Name of the placement.")
    sleep: bool = operational(
        False,
        "vLLM on a GPU frees its memory while the models are trained; on a CPU nothing happens.",
    )


class ApartConfig(ProcessConfig):
    """All workers share engines that have resources of their own, on any node of the cluster."""

    name: Literal["apart"] = operational("apart", "Name of the placement.")
    num_cpus: float = operational(1, "CPU cores per engine; each uses as many threads.", gt=0)
    num_gpus: float = operational(0, "GPUs per engine.", ge=0)
    tensor_parallel_size: int = operational(
        1, "Parts into which vLLM divides the weights of one engine.", gt=0, le=64
    )
    weights: Literal["auto", "memory", "collective"] = operational(
        "auto",
        "How weights reach the engines: through shared memory, or by broadcast (NCCL on GPUs, else "
        "gloo). `auto` uses shared memory if all engines are on the machine of the first worker "
        "and it has no GPU.",
    )

    @model_validator(mode="after")
    def _has_a_gpu_per_part(self) -> Self:
        """Refuse parts of an engine that would share a GPU."""
        if self.num_gpus and self.tensor_parallel_size not in (1, self.num_gpus):
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}, and an engine on GPUs has "
                f"one part per GPU, found num_gpus {self.num_gpus:g}; make them equal"
            )
        return self


class InlineScoringConfig(Block):
    """Every worker scores its part of a round, with a reward of its own."""

    name: Literal["inline"] = operational("inline", "Name of the placement.")


class ApartScoringConfig(Block):
    """Processes with resources of their own, on any node of the cluster, score for all workers."""

    name: Literal["apart"] = operational("apart", "Name of the placement.")
    scorers: int = operational(1, "Number of processes; each has the reward.", gt=0, le=MAX_ENGINES)
    num_cpus: float = operational(1, "CPU cores per process.", gt=0)
    num_gpus: float = operational(0, "GPUs per process.", ge=0)
    timeout_seconds: float = operational(
        1800.0, "Limit for the rewards of one call, e.g. of a round.", gt=0, le=86_400
    )


ScoringConfig: TypeAlias = Annotated[
    InlineScoringConfig | ApartScoringConfig, Field(discriminator="name")
]


def gpus_apart(config: StageConfig) -> float:
    """Return the GPUs of a stage beside those of its workers."""
    return sum(number * each.num_gpus for number, each in _apart(config))


def cpus_apart(config: StageConfig) -> float:
    """Return the CPU cores of a stage beside those of its workers."""
    return sum(number * each.num_cpus for number, each in _apart(config))


def reserved_gpus(config: StageConfig) -> float:
    """Return all GPUs that a stage reserves."""
    return config.resources.num_workers * config.resources.num_gpus + gpus_apart(config)


def _apart(config: StageConfig) -> Iterator[tuple[int, ApartConfig | ApartScoringConfig]]:
    for _, block in blocks_at(config):
        if isinstance(block, ApartConfig):
            yield block.engines, block
        elif isinstance(block, ApartScoringConfig):
            yield block.scorers, block


PlacementConfig: TypeAlias = Annotated[
    InlineConfig | ColocatedConfig | ApartConfig, Field(discriminator="name")
]
