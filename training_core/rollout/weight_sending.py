"""Send the weights of a policy to engines in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from training_core.rollout.engine import Policy, device_of, named_weights
from training_core.rollout.engine_messages import (
    Asleep,
    Bucket,
    Ended,
    Failed,
    FromEngine,
    Join,
    Loaded,
    NewWeights,
    Taken,
)
from training_core.rollout.engine_process import EngineProcess
from training_core.rollout.weight_buckets import BUCKET_BYTES, fill_buckets
from training_core.rollout.weight_channels import BroadcastSender, Sender, SharedMemorySender

Way = Literal["auto", "memory", "collective"]


class WeightSender:
    """Sends weights through one bucket after the other, which all engines read.

    Args:
        way: `memory` is shared memory, and `collective` a broadcast. `auto` is shared memory,
            unless an engine is on another machine or the policy is on a GPU.
        parts: number of processes of an engine that receive weights.
        host: address under which engines on other machines reach this process.
        timeout_seconds: limit for all engines to take part in a broadcast.
        bucket_bytes: size of the bucket.
    """

    def __init__(
        self,
        way: Way = "memory",
        *,
        parts: int = 1,
        host: str = "127.0.0.1",
        timeout_seconds: float = 600.0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._way, self._parts, self._host = way, parts, host
        self._timeout_seconds, self._bucket_bytes = timeout_seconds, bucket_bytes
        self._sender: Sender | None = None
        self._joined: set[EngineProcess] = set()

    def send(
        self, policy: Policy, version: int, processes: Sequence[EngineProcess]
    ) -> list[FromEngine]:
        """Send the weights of `policy`; return `Loaded` or `Ended` of each process.

        If a process ends during a broadcast, all are ended: they wait for each other.
        """
        sender = self._sender_for(policy, processes)
        try:
            self._invite(sender, processes)
            for process in processes:
                process.ask(NewWeights(version))
            for bucket in fill_buckets(named_weights(policy), sender.memory):
                self._send_bucket(sender, bucket, processes)
        except _BrokenBroadcast as error:
            self._joined = set()
            return [process.end(f"a broadcast of weights failed: {error}") for process in processes]
        for process in processes:
            process.ask(Bucket(()))
        return [answer_of(process, Loaded) for process in processes]

    def close(self) -> None:
        """Free the memory."""
        if self._sender is not None:
            self._sender.close()

    def _sender_for(self, policy: Policy, processes: Sequence[EngineProcess]) -> Sender:
        device = device_of(policy)
        is_near = all(p.is_here for p in processes) and device.type == "cpu"
        is_shared = self._way == "memory" or (self._way == "auto" and is_near)
        if self._sender is None or isinstance(self._sender, SharedMemorySender) != is_shared:
            self.close()
            self._joined = set()
            self._sender = (
                SharedMemorySender(self._bucket_bytes)
                if is_shared
                else BroadcastSender(
                    self._bucket_bytes,
                    device,
                    host=self._host,
                    timeout_seconds=self._timeout_seconds,
                )
            )
        return self._sender

    def _invite(self, sender: Sender, processes: Sequence[EngineProcess]) -> None:
        """Give a channel to those that have none; a broadcast needs a group of exactly these."""
        new = set(processes) - self._joined
        if isinstance(sender, SharedMemorySender):
            self._joined |= new
        elif new or self._joined - set(processes):
            new = self._joined = set(processes)
        invited = [process for process in processes if process in new]
        channels = sender.invite([self._parts] * len(invited)) if invited else []
        for process, channel in zip(invited, channels, strict=True):
            process.ask(Join(channel))
        if invited:
            with _broken_if_it_fails():
                sender.connect()

    @staticmethod
    def _send_bucket(sender: Sender, bucket: Bucket, processes: Sequence[EngineProcess]) -> None:
        for process in processes:
            process.ask(bucket)
        last = bucket.pieces[-1]
        with _broken_if_it_fails():
            sender.send(last.offset + last.size)
        for process in processes:
            answer = answer_of(process, Taken)
            if isinstance(answer, Ended) and not isinstance(sender, SharedMemorySender):
                raise _BrokenBroadcast(answer.words)


class _BrokenBroadcast(Exception):  # noqa: N818 - never leaves this module
    """A member of the group is lost; the others wait for it."""


@contextmanager
def _broken_if_it_fails() -> Iterator[None]:
    """Translate what torch.distributed raises."""
    try:
        yield
    except RuntimeError as error:
        raise _BrokenBroadcast(str(error)) from error


def answer_of(process: EngineProcess, kind: type[Taken | Loaded | Asleep]) -> FromEngine:
    """Wait for an answer of this kind, or the end of the process."""
    while True:
        answer = process.receive()
        if isinstance(answer, kind | Ended):
            return answer
        raise_failure(answer)


def raise_failure(answer: FromEngine) -> None:
    """Raise the error of an engine that a restart would not mend."""
    if isinstance(answer, Failed):
        raise answer.error
