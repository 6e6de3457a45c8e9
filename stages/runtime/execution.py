"""Log, signals, threads and exit code of every process that runs a stage."""

from __future__ import annotations

import logging
import signal
import sys
from importlib import import_module
from pathlib import Path
from threading import Event

from stages.attempt import Attempt
from stages.configs.block import StageConfig
from stages.contract import Context, Result
from stages.runtime.error_record import write_error
from stages.runtime.exit_codes import ExitCode, code_of
from stages.runtime.store import Request
from training_core.hidden_packages import tell_transformers_to_do_without

log = logging.getLogger("ratchet")


def execute(request: Request, config: StageConfig, context: Context) -> Result:
    """Run the stage of a request with as many threads as its config reserves CPUs."""
    rank = context.dist_info
    log.info(
        "stage %s, key %s, attempt %s, rank %d of %d",
        request.stage, request.key[:12], context.attempt.name, rank.rank, rank.world_size,
    )  # fmt: skip
    _use_threads(config)
    inputs = {role: Path(directory) for role, directory in request.inputs.items()}
    tell_transformers_to_do_without()  # before the page imports it
    page = import_module(f"stages.{request.stage}")  # imported here because it loads torch
    return page.run(config, inputs, context)


def stop_on_sigterm() -> Event:
    """Let SIGTERM set an event instead of ending this process, and return the event."""
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def report(error: Exception, attempt: Attempt) -> ExitCode:
    """Log the error that ends the process, write `error.json`, and return the exit code."""
    code = code_of(error)
    log.error("%s: %s", type(error).__name__, error, exc_info=isinstance(error, OSError))
    try:
        write_error(attempt, code, error)
    except OSError as second:  # e.g. a full disk; the exit code states the cause, too
        log.error("error.json was not written: %s", second)
    return code


def log_to(path: Path) -> None:
    """Log to a file and to standard output."""
    handlers = [logging.FileHandler(path), logging.StreamHandler(sys.stdout)]
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(
        level=logging.INFO, format=form, datefmt="%H:%M:%S", handlers=handlers, force=True
    )
    for noisy in ("httpx", "fsspec", "datasets", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _use_threads(config: StageConfig) -> None:
    import torch

    torch.set_num_threads(max(1, int(config.resources.num_cpus)))
