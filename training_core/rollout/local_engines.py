"""Rollout engines as processes of this machine."""

from __future__ import annotations

import atexit
import os
import signal
import tempfile
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from training_core.rollout.engine_process import EngineProcess
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.serving import Surroundings, serve

LAST_WORDS_BYTES = 2000
SECONDS_TO_END = 10.0


class LocalHost:
    """Starts engines on this machine, which share its visible GPUs and the threads of this process.

    Args:
        engines: number of engines; each gets an equal part of the threads, and the visible GPU of
            its number, modulo their count.
        silence_seconds: see `EngineProcess`.
        gpus: GPUs per engine; 0 divides nothing.
        start_method: of the package `multiprocessing`.
    """

    address = "127.0.0.1"

    def __init__(
        self,
        engines: int,
        *,
        silence_seconds: float,
        gpus: int = 1,
        start_method: str = "spawn",
    ) -> None:
        self._engines, self._gpus = engines, max(1, gpus)
        self._silence_seconds = silence_seconds
        self._context: Any = get_context(start_method)
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-engines-")

    def start(self, number: int, spec: EngineSpec) -> EngineProcess:
        """Start an engine; see `EngineHost`."""
        around = Surroundings(
            words=Path(self._folder.name) / f"engine-{number}.txt",
            threads=max(1, torch.get_num_threads() // self._engines),
            gpus=self._gpus_of(number),
        )
        ours, theirs = self._context.Pipe()
        # Daemon: it is ended when this process ends.
        process = self._context.Process(
            target=serve, args=(spec, around, theirs), daemon=not spec.has_children
        )
        process.start()
        if spec.has_children:  # a daemon may have none; so that this process does not wait for it
            atexit.register(process.kill)
        theirs.close()  # so that the end of the process is the end of the connection
        handle = LocalHandle(process, around.words)
        return EngineProcess(ours, handle, is_here=True, silence_seconds=self._silence_seconds)

    def close(self) -> None:
        """Delete what the engines printed."""
        self._folder.cleanup()

    def _gpus_of(self, number: int) -> str | None:
        count = torch.cuda.device_count()
        if not count:
            return None
        every = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(i) for i in range(count))
        visible, first = every.split(","), number * self._gpus
        return ",".join(visible[(first + i) % count] for i in range(self._gpus))


class LocalHandle:
    """A process of `multiprocessing`.

    Args:
        process: started.
        words: file of what it prints.
    """

    def __init__(self, process: BaseProcess, words: Path) -> None:
        self._process, self._words = process, words

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self._process.pid or 0)

    def last_words(self) -> str:
        """Tell how the process ended; see `ProcessHandle`."""
        self._process.join(SECONDS_TO_END)
        code = self._process.exitcode
        if code is None:
            how = "closed its connection"
        else:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
        said = self._words.read_bytes()[-LAST_WORDS_BYTES:] if self._words.exists() else b""
        text = said.decode(errors="replace").strip()
        return f"{how}; it last printed:\n{text}" if text else f"{how} and printed nothing"

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and kill it if it does not end."""
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()
