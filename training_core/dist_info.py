"""The rank of a process among those that train one model. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training_core.errors import ConfigError


@dataclass(frozen=True)
class DistInfo:
    """The rank of this process, and the number of processes that train together.

    Attributes:
        rank: 0 to world_size - 1; rank 0 writes the files that only one process writes.
        world_size: number of processes.
        local_rank: number of this process on its machine, and of its GPU.
        tensor_parallel_size: number of neighbouring ranks that hold the parts of one model, and so
            get the same data.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible ranks."""
        if self.world_size % self.tensor_parallel_size:
            raise ConfigError(
                "resources.num_workers must be a multiple of tensor_parallel_size "
                f"{self.tensor_parallel_size}, found {self.world_size}; change one of them"
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"RANK must be from 0 to WORLD_SIZE - 1 = {self.world_size - 1}, found {self.rank}"
            )

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that only one process writes."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Index of this process's share of the data."""
        return self.rank // self.tensor_parallel_size

    @property
    def data_world_size(self) -> int:
        """Number of shares of the data."""
        return self.world_size // self.tensor_parallel_size

    @property
    def is_single_process(self) -> bool:
        """Whether there is no other process."""
        return self.world_size == 1


SINGLE_PROCESS = DistInfo()


def dist_info_from(environment: Mapping[str, str]) -> DistInfo:
    """Read RANK, WORLD_SIZE and LOCAL_RANK; without RANK there is a single process.

    Raises:
        ConfigError: if they contradict each other.
    """
    if "RANK" not in environment:
        return SINGLE_PROCESS
    return DistInfo(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment.get("LOCAL_RANK", "0")),
    )
