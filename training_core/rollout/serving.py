"""The main function of a rollout engine's own process."""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from training_core.errors import RatchetError
from training_core.rollout.engine_messages import (
    Asleep,
    Bucket,
    Failed,
    Finished,
    Join,
    Loaded,
    NewWeights,
    Opened,
    RequestBlock,
    Sleep,
    Stepped,
    Taken,
)
from training_core.rollout.engine_spec import EngineSpec, ReceivingEngine

PROGRESS_EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class Surroundings:
    """What a rollout engine's process gets beside its engine.

    Attributes:
        words: file for everything that the process prints.
        threads: number of threads of torch.
        gpus: the GPUs in the form of CUDA_VISIBLE_DEVICES; None leaves the variable as it is.
    """

    words: Path
    threads: int
    gpus: str | None


def serve(spec: EngineSpec, around: Surroundings, connection: Connection) -> None:
    """Open the engine and do what the other side of `connection` asks, until that side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage
    _print_to(around.words)
    if around.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = around.gpus  # CUDA reads it when it is first used
    # vLLM would otherwise bind the threads of several engines to the same cores.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    torch.set_num_threads(around.threads)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    answers = _Answers(connection)
    try:
        engine = spec.open()
        answers.send(Opened())
        threading.Thread(target=_show_progress, args=(engine, answers), daemon=True).start()
        _work(engine, inbox, answers.send)
    except RatchetError as error:
        answers.send(Failed(error))


class _Answers:
    """The way back to the stage, for several threads.

    Args:
        connection: to the stage.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, answer: object) -> None:
        """Send an answer."""
        with self._lock:
            self._connection.send(answer)


def _print_to(path: Path) -> None:
    """Send standard output and errors of this process to a file, those of C code included."""
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(sys.__stderr__ or sys.stderr)


def _read(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Put messages into `inbox`, so that the sender never waits; end with the sender."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _show_progress(engine: ReceivingEngine, answers: _Answers) -> None:
    """Tell from time to time that the engine has done further steps, if it has."""
    shown = engine.steps
    while True:
        time.sleep(PROGRESS_EVERY_SECONDS)
        if engine.steps != shown:
            shown = engine.steps
            answers.send(Stepped())


def _work(
    engine: ReceivingEngine, inbox: queue.SimpleQueue[Any], answer: Callable[[object], None]
) -> None:
    while True:
        message: RequestBlock | Join | NewWeights | Sleep = inbox.get()
        if isinstance(message, RequestBlock):
            engine.submit(message.requests)
            for name, rollout in engine.finished():
                answer(Finished(name, rollout))
                while not inbox.empty():
                    engine.submit(inbox.get().requests)
        elif isinstance(message, Join):
            engine.join(message.channel)
        elif isinstance(message, NewWeights):
            answer(Loaded(engine.receive_weights(_buckets(inbox, answer), message.version)))
        else:
            engine.sleep()
            answer(Asleep())


def _buckets(inbox: queue.SimpleQueue[Any], answer: Callable[[object], None]) -> Iterator[Bucket]:
    """Yield the buckets of a sync; the stage fills the next one when the engine asks for it."""
    while True:
        bucket: Bucket = inbox.get()
        if not bucket.pieces:
            return
        yield bucket
        answer(Taken())
