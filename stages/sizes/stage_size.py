"""The result of an estimate, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from stages.configs.block import ResourcesConfig
from training_core.sizes.training_memory import Parts

GIB = 2**30
HEADROOM = 0.9
"""Share of a GPU that an estimate may fill: CUDA and NCCL need about 2 GiB, and freed memory is in
pieces that are too small for the next tensor. It is also vLLM's default."""

Roles = Mapping[str, Parts]
"""Name of a model, e.g. `policy` -> its memory on one GPU."""


@dataclass(frozen=True)
class Work:
    """What a stage computes.

    Attributes:
        tokens_per_step: tokens of all workers, at most: each sequence may have `max_tokens`; None:
            unknown, like `steps`.
        flops_per_step: of all workers; None: unknown.
        steps: optimizer steps, rounds of PPO, or 1 for a stage that only samples; None: unknown,
            because nothing tells the size of the dataset.
        flops_once: before the first step, e.g. log-probabilities of a reference.
    """

    tokens_per_step: float | None
    flops_per_step: float | None
    steps: int | None
    flops_once: float = 0.0

    @property
    def flops(self) -> float | None:
        """FLOPs of the whole stage; None if the number of steps is unknown."""
        if self.steps is None or self.flops_per_step is None:
            return None
        return self.steps * self.flops_per_step + self.flops_once


@dataclass(frozen=True)
class StageSize:
    """The estimate of a stage.

    Attributes:
        workers: number of workers.
        num_gpus: GPUs per worker.
        phase: when the memory of a worker is largest, e.g. `optimizer step`.
        roles: what each model holds in that phase.
        work: tokens and FLOPs.
        limit_gib: memory that a worker may fill; None: the config does not tell.
        gpus_apart: GPUs of rollout engines, whose memory is not estimated.
    """

    workers: int
    num_gpus: float
    phase: str
    roles: Roles
    work: Work
    limit_gib: float | None = None
    gpus_apart: float = 0.0

    @property
    def together(self) -> Parts:
        """Memory of all roles."""
        return reduce(add, self.roles.values(), Parts())

    @property
    def fits(self) -> bool:
        """Whether the estimate is below the limit; true without a limit."""
        return self.limit_gib is None or self.together.total <= self.limit_gib * GIB

    @property
    def largest(self) -> tuple[str, str]:
        """Role and name of its largest part."""
        parts = {
            (role, name): size
            for role, of_role in self.roles.items()
            for name, size in of_role.on_gpu.items()
        }
        return max(parts, key=lambda key: parts[key])


def largest_phase(found: Iterable[tuple[str, Roles]]) -> tuple[str, Roles]:
    """Return the phase in which all roles together need most."""
    return max(found, key=lambda phase: sum(parts.total for parts in phase[1].values()))


def steps_in(rows: int | None, batch_size: int, epochs: float) -> int | None:
    """Return the number of optimizer steps; None if the number of rows is unknown."""
    return None if rows is None else math.ceil(rows * epochs / batch_size)


def limit_of(resources: ResourcesConfig) -> float | None:
    """Return the GiB that a worker may fill: of its GPU, or of its CPU memory if it has no GPU."""
    if not resources.num_gpus:
        return resources.memory_gib
    if resources.gpu_memory_gib is None:
        return None
    return HEADROOM * resources.gpu_memory_gib * min(1.0, resources.num_gpus)
