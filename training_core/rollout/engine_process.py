"""A rollout engine's process, as the stage's process sees it."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Protocol

from training_core.rollout.engine_messages import Ended, FromEngine, RequestBlock
from training_core.rollout.engine_spec import EngineSpec

SECONDS_FOR_THE_END = 1.0
"""Time in which the end of a process is noticed."""


class ProcessHandle(Protocol):
    """A started process, on this machine or another."""

    def last_words(self) -> str:
        """Wait for the end of the process; tell how it ended, and what it printed last."""
        ...

    def kill(self) -> None:
        """End the process at once, also if it is stopped."""
        ...

    def close(self) -> None:
        """Let the process end, whose connection is closed, and free its resources."""
        ...


class EngineProcess:
    """Talks to the process of a rollout engine, and knows what it is working on.

    Args:
        connection: to the process; its end is the end of the process.
        handle: the process.
        is_here: whether it can map memory of this process.
        silence_seconds: limit of the time in which it has work and shows no progress.

    Attributes:
        blocks: the blocks of requests that it was given and has not finished, oldest first.
        unfinished: ids of the unfinished requests in each of these blocks.
    """

    def __init__(
        self,
        connection: Connection,
        handle: ProcessHandle,
        *,
        is_here: bool,
        silence_seconds: float,
    ) -> None:
        self.connection, self.handle = connection, handle
        self.is_here, self.silence_seconds = is_here, silence_seconds
        self.blocks: deque[RequestBlock] = deque()
        self.unfinished: deque[set[str]] = deque()
        self._heard = time.monotonic()
        self._ended: Ended | None = None
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        # A thread, because a stopped process takes no messages, and the sender must not wait.
        threading.Thread(target=self._send_all, daemon=True).start()

    def give(self, block: RequestBlock) -> None:
        """Send a block of requests."""
        if not self.blocks:
            self._heard = time.monotonic()  # it had nothing to tell before
        self.blocks.append(block)
        self.unfinished.append({request.id for request in block.requests})
        self.send(block)

    def has_finished(self, name: str) -> None:
        """Note that a request is finished."""
        for number, names in enumerate(self.unfinished):
            names.discard(name)
            if not names:
                del self.blocks[number], self.unfinished[number]
                return

    def send(self, message: object) -> None:
        """Send a message; if the process has ended, `receive` tells it."""
        self._outbox.put(message)

    def ask(self, message: object) -> None:
        """Send a message that the process answers."""
        self._heard = time.monotonic()
        self.send(message)

    @property
    def patience_seconds(self) -> float:
        """Time that is left for the next message of a process that has work."""
        return max(0.0, self._heard + self.silence_seconds - time.monotonic())

    def receive(self) -> FromEngine:
        """Wait for the next message of a process that has work; kill it if it is silent.

        The last message is `Ended`, again and again.
        """
        if self._ended is None:
            message = self._next()
            if not isinstance(message, Ended):
                return message
            self._ended = message
        return self._ended

    def _next(self) -> FromEngine:
        try:
            if not self.connection.poll(self.patience_seconds):
                self.handle.kill()
                return Ended(
                    f"had work, showed no progress for {self.silence_seconds:g} s and was killed"
                )
            message = self.connection.recv()
        except (EOFError, OSError):
            return Ended(self.handle.last_words())
        self._heard = time.monotonic()
        return message

    def end(self, reason: str) -> Ended:
        """Kill the process, and tell the reason, or how it had ended before."""
        while self.connection.poll(SECONDS_FOR_THE_END):
            if isinstance(answer := self.receive(), Ended):
                return answer
        self.handle.kill()
        self._ended = Ended(f"was killed, because {reason}")
        return self._ended

    def close(self) -> None:
        """End the process."""
        self._outbox.put(None)
        self.connection.close()
        self.handle.close()

    def _send_all(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self.connection.send(message)
            except OSError:
                return


class EngineHost(Protocol):
    """Where the processes of rollout engines are started.

    Attributes:
        address: of this machine, for engines on others.
    """

    address: str

    def start(self, number: int, spec: EngineSpec) -> EngineProcess:
        """Start the engine of this number, from 0; also again, if it has ended.

        Raises:
            TransientError: if there is no place for it.
        """
        ...

    def close(self) -> None:
        """Free what the host has reserved."""
        ...
