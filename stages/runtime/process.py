"""One stage as an operating-system process: it reads a request and writes a manifest or error.

The exit code states why it ended.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event

from pydantic import ValidationError

from stages.attempt import Attempt
from stages.configs.block import StageConfig
from stages.contract import Context, MetricSink
from stages.runtime.execution import execute, log_to, report, stop_on_sigterm
from stages.runtime.exit_codes import ExitCode, code_of
from stages.runtime.heartbeats import Heartbeat
from stages.runtime.manifest_draft import draft_manifest
from stages.runtime.metric_files import NullSink
from stages.runtime.requests import (
    attempt_of,
    config_of,
    read_request,
    require_consistent,
    require_unchanged_inputs,
)
from stages.runtime.stage_cluster import StageCluster
from stages.runtime.store import Request, Store
from stages.runtime.trackers import open_sinks
from stages.runtime.worker_processes import IN_RAY_JOB, die_with_parent
from stages.runtime.workers import run_workers
from training_core.dist_info import SINGLE_PROCESS, DistInfo, dist_info_from
from training_core.errors import ConfigError, RatchetError

log = logging.getLogger("ratchet")

LOST_RANK = re.compile("gloo|NCCL|TCPStore|[Cc]onnection")
"""Words in the RuntimeError of torch.distributed after another rank has died."""


def run_request(path: Path) -> int:
    """Run the stage that the request file `path` describes and publish its manifest.

    If the request needs several workers, this process starts them and waits. Each worker calls this
    function, too, with RANK in its environment.

    Returns:
        An `ExitCode`; errors of known classes are also written to `error.json` next to the request.
    """
    try:
        attempt = attempt_of(path)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return code_of(error)
    log_to(attempt.log_of(int(os.environ.get("RANK", "0"))))
    started = time.time()
    dist_info = SINGLE_PROCESS
    try:
        dist_info = dist_info_from(os.environ)
        request = read_request(path)
        config = config_of(request)
        require_consistent(request, attempt)
        stop = stop_on_sigterm()
        if Store(attempt.store_root).find(request.stage, request.key):
            log.info("another attempt has finished already")
            return ExitCode.LOST_THE_RACE
        if config.resources.num_workers > 1 and "RANK" not in os.environ:
            return run_workers(path.resolve(), config.resources, stop)
        with (
            _together(dist_info),
            Heartbeat(attempt) if dist_info.is_first else nullcontext(),
            open_sinks(attempt, request, config.logging)
            if dist_info.is_first
            else nullcontext(NullSink()) as sink,
        ):
            if dist_info.is_first:  # the others read the same inputs
                require_unchanged_inputs(request, config)
            context = _context(attempt, request, stop, dist_info, sink)
            won = _run(request, config, context, started)
    except (RatchetError, ValidationError, OSError) as error:
        return report(error, attempt)
    except RuntimeError as error:
        if dist_info.is_single_process or not LOST_RANK.search(str(error)):
            raise
        log.error("another rank has ended: %s", error)  # that rank reports the cause
        return ExitCode.TRANSIENT
    log.info("done in %.1f s", time.time() - started) if won else log.info(
        "another attempt finished first"
    )
    return ExitCode.DONE if won else ExitCode.LOST_THE_RACE


def _run(request: Request, config: StageConfig, context: Context, started: float) -> bool:
    """Run the stage; only the first rank publishes."""
    result = execute(request, config, context)
    if not context.dist_info.is_first:
        shutil.rmtree(context.artifact_dir.parent, ignore_errors=True)
        return True
    draft = draft_manifest(request, config, result, context.attempt, started=started)
    return Store(context.attempt.store_root).publish(draft)


@contextmanager
def _together(dist_info: DistInfo) -> Iterator[None]:
    """Connect the workers of one stage."""
    if dist_info.is_single_process:
        yield
        return
    from training_core.distributed import connected

    die_with_parent()
    meeting = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    with connected(dist_info, meeting):
        yield


def _context(
    attempt: Attempt, request: Request, stop: Event, dist_info: DistInfo, sink: MetricSink
) -> Context:
    return Context(
        attempt=attempt,
        sink=sink,
        earlier_attempts=attempt.siblings,
        should_stop=stop.is_set,
        input_digests=request.input_digests,
        cache_dir=attempt.store_root / "cache",
        dist_info=dist_info,
        cluster=StageCluster(stop.is_set) if os.environ.get(IN_RAY_JOB) else None,
    )
