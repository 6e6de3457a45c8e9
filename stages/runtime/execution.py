"""Log, signals, threads and exit code of every process that runs a stage."""

from __future__ import annotations

import logging
import random
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
from stages.safe_text import SafeFormatter
from training_core.collector import paused_collector
from training_core.hidden_packages import tell_transformers_to_do_without

log = logging.getLogger("ratchet")

NUMPY_SEEDS = 2**32
"""Number of seeds that NumPy takes; torch takes more."""


def execute(request: Request, config: StageConfig, context: Context) -> Result:
    """Run the stage of a request, with the threads and the seed of its config."""
    rank = context.dist_info
    log.info(
        "stage %s, key %s, attempt %s, rank %d of %d",
        request.stage, request.key[:12], context.attempt.name, rank.rank, rank.world_size,
    )  # fmt: skip
    inputs = {role: Path(directory) for role, directory in request.inputs.items()}
    with paused_collector():
        _use_threads(config)
        tell_transformers_to_do_without()  # before the stage imports it
        stage = import_module(f"stages.{request.stage}")  # imported here because it loads torch
        from stages.training.hand_off import require_contracts

        require_contracts(config, inputs)
        _seed_generators(config)
    return stage.run(config, inputs, context)


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
    form = SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    for handler in handlers:
        handler.setFormatter(form)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for noisy in ("httpx", "fsspec", "datasets", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _use_threads(config: StageConfig) -> None:
    import torch

    torch.set_num_threads(max(1, int(config.resources.num_cpus)))


def _seed_generators(config: StageConfig) -> None:
    """Seed the global generators of Python, NumPy and torch, e.g. for dropout.

    All ranks get one seed, because ranks that share a layer must drop the same activations. A
    resumed stage then restores the state in its checkpoint. (`transformers.set_seed` does the same,
    but importing it takes seconds.)
    """
    import numpy as np
    import torch

    random.seed(config.seed)
    np.random.seed(config.seed % NUMPY_SEEDS)
    torch.manual_seed(config.seed)
