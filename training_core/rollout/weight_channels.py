"""The memory of a bucket of weights, and how it comes to the processes of rollout engines.

The stage's process has a `Sender`. What it sends an engine once is a `Channel`, which the engine
opens; the opened end then has the content of each bucket.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore - documented


class ReadEnd(Protocol):
    """An opened channel."""

    def take(self, used: int) -> Tensor:
        """Return the memory [size] uint8 of the next bucket, of which `used` bytes count."""
        ...


class Channel(Protocol):
    """How buckets come to one engine; it can be pickled, unless it is for the same process."""

    def open(self, device: torch.device) -> ReadEnd:
        """Open it in the process that reads."""
        ...

    def of_part(self, number: int) -> Channel:
        """Return the channel for one of the processes into which an engine is divided."""
        ...


class Sender(Protocol):
    """The end of the stage's process.

    Attributes:
        memory: of the bucket [size] uint8.
    """

    memory: Tensor

    def invite(self, parts: Sequence[int]) -> list[Channel]:
        """Return a new channel per engine; `parts` are the numbers of their processes."""
        ...

    def connect(self) -> None:
        """Wait until the engines of the last `invite` have opened their channels.

        Raises:
            RuntimeError: if one of them does not in time.
        """
        ...

    def send(self, used: int) -> None:
        """Bring the first `used` bytes to the engines of the last `invite`.

        Raises:
            RuntimeError: if one of them does not take part.
        """
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


@dataclass(frozen=True)
class LocalMemory:
    """A channel within a process; its only end.

    Attributes:
        memory: of the bucket [size] uint8.
    """

    memory: Tensor

    def open(self, device: torch.device) -> LocalMemory:
        """Return itself."""
        del device
        return self

    def of_part(self, number: int) -> LocalMemory:
        """Return itself: threads of one process read the same memory."""
        del number
        return self

    def take(self, used: int) -> Tensor:
        """Return the memory."""
        del used
        return self.memory


@dataclass(frozen=True)
class SharedMemory:
    """A channel to a process of the same machine and user.

    Attributes:
        path: file of the memory.
        size: in bytes.
    """

    path: str
    size: int

    def open(self, device: torch.device) -> LocalMemory:
        """Map the memory."""
        del device
        return LocalMemory(map_memory(self.path, self.size))

    def of_part(self, number: int) -> SharedMemory:
        """Return itself: all parts map the same memory."""
        del number
        return self


class SharedMemorySender:
    """Memory that other processes of this machine and user can map.

    The memory has no name in any filesystem (`memfd_create`): it is freed with the last process
    that uses it, however that ends, and the size of /dev/shm is no limit.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("ratchet-weights")
        os.ftruncate(self._descriptor, size)
        self._channel = SharedMemory(f"/proc/{os.getpid()}/fd/{self._descriptor}", size)
        self.memory = map_memory(self._channel.path, size)

    def invite(self, parts: Sequence[int]) -> list[Channel]:
        """Return the same channel for all."""
        return [self._channel for _ in parts]

    def connect(self) -> None:
        """Do nothing: nobody waits for readers."""

    def send(self, used: int) -> None:
        """Do nothing: the readers see the memory."""

    def close(self) -> None:
        """Free the memory, once no other process uses it."""
        os.close(self._descriptor)
        self.memory = torch.empty(0, dtype=torch.uint8)


def map_memory(path: str, size: int) -> Tensor:
    """Return memory [size] uint8 that the process that made it shares."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


@dataclass(frozen=True)
class Broadcast:
    """A channel to a process anywhere: every bucket is a broadcast, by NCCL on GPUs, else by gloo.

    Attributes:
        host: address of the sender.
        port: of its store, where the group meets.
        group: name of the group in that store.
        rank: of the reader; the sender has rank 0.
        world_size: all readers and the sender.
        size: of a bucket, in bytes.
        timeout_seconds: limit for the others to take part.
    """

    host: str
    port: int
    group: str
    rank: int
    world_size: int
    size: int
    timeout_seconds: float

    def open(self, device: torch.device) -> BroadcastEnd:
        """Join the group."""
        timeout = timedelta(seconds=self.timeout_seconds)
        store = TCPStore(self.host, self.port, is_master=False, timeout=timeout)
        return BroadcastEnd(self, store, device)

    def of_part(self, number: int) -> Broadcast:
        """Return the channel of the part with the number, which has a rank of its own."""
        return replace(self, rank=self.rank + number)


class BroadcastEnd:
    """One member of a group, and its copy of the bucket.

    Args:
        channel: the group, and the rank in it.
        store: where the group meets.
        device: of the bucket.
        memory: of the bucket, if there is one.
    """

    def __init__(
        self,
        channel: Broadcast,
        store: Store,
        device: torch.device,
        memory: Tensor | None = None,
    ) -> None:
        own = PrefixStore(channel.group, store)
        # Not a group of `init_process_group`: the stage's workers already have one of their own.
        self._group = _process_group(own, channel, device)
        self._store = store
        empty = torch.empty(channel.size, dtype=torch.uint8, device=device)
        self.memory = empty if memory is None else memory

    def take(self, used: int) -> Tensor:
        """Take part in the broadcast of the first `used` bytes, and return the memory."""
        self._group.broadcast(self.memory[:used], 0).wait()
        return self.memory


def _process_group(store: Store, channel: Broadcast, device: torch.device) -> Any:
    timeout = timedelta(seconds=channel.timeout_seconds)
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, channel.rank, channel.world_size, options)
    return dist.ProcessGroupGloo(store, channel.rank, channel.world_size, timeout)


class BroadcastSender:
    """The sender of broadcasts; `invite` begins a new group.

    Args:
        size: of a bucket, in bytes.
        device: of the bucket.
        host: address under which engines reach this process.
        timeout_seconds: limit for the engines to take part.
    """

    def __init__(
        self, size: int, device: torch.device, *, host: str, timeout_seconds: float
    ) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._own = Broadcast(host, self._store.port, "", 0, 1, size, timeout_seconds)
        self._names = count()
        self._end: BroadcastEnd | None = None

    def invite(self, parts: Sequence[int]) -> list[Channel]:
        """Return the channels of a new group."""
        self._end = None
        name, world_size = f"group-{next(self._names)}", 1 + sum(parts)
        self._own = replace(self._own, group=name, world_size=world_size)
        return [replace(self._own, rank=1 + sum(parts[:i])) for i in range(len(parts))]

    def connect(self) -> None:
        """Join the group, as all engines do."""
        self._end = BroadcastEnd(self._own, self._store, self.memory.device, self.memory)

    def send(self, used: int) -> None:
        """Broadcast the first `used` bytes."""
        if self._end is not None:
            self._end.take(used)

    def close(self) -> None:
        """Leave the group."""
        self._end = None
        self.memory = torch.empty(0, dtype=torch.uint8)


def machine_id() -> str:
    """Name the machine (and container) of this process: those with the same can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
