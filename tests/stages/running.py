"""Run a stage to its end in this process, as a flow would through a store."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.attempt import Attempt
from stages.catalog import find_stage
from stages.runtime.manifest import Manifest
from stages.runtime.process import run_request
from stages.runtime.sources import digests_of_sources, missing_sources
from stages.runtime.stage_key import stage_key
from stages.runtime.store import Request, Store

Parents = Mapping[str, Manifest]


def write_request(
    store: Store,
    stage: str,
    config: Mapping[str, Any],
    parents: Parents | None = None,
    *,
    attempt: str = "a1",
) -> Path:
    """Write what a flow hands to a stage's process."""
    parents = parents or {}
    spec = find_stage(stage)
    resolved = spec.config.model_validate(config)
    digests = {role: m.digest for role, m in parents.items()}
    if not missing_sources(resolved):  # what is missing is for the stage to say
        digests |= digests_of_sources(resolved)
    key = stage_key(spec, resolved, digests)
    request = Request(
        stage=stage,
        step=stage,
        key=key,
        config=resolved.model_dump(mode="json"),
        inputs={role: str(store.artifact_dir(m)) for role, m in parents.items()},
        input_digests=digests,
        parents={role: m.key for role, m in parents.items()},
    )
    path = store.attempt(stage, key, attempt).request
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(request.model_dump_json())
    return path


def finish(
    store: Store, stage: str, config: Mapping[str, Any], parents: Parents | None = None
) -> Manifest:
    """Run a stage and return its manifest; a finished one is not run again."""
    path = write_request(store, stage, config, parents)
    attempt = Attempt(path.parent)
    if (manifest := store.find(stage, attempt.key)) is not None:
        return manifest
    code = run_here(path)
    assert code == 0, attempt.error.read_text()
    manifest = store.find(stage, attempt.key)
    assert manifest is not None
    return manifest


def run_here(request: Path) -> int:
    """Run `python -m stages` without the process, and give back what it takes for itself."""
    with as_if_a_process():
        return int(run_request(request))


@contextmanager
def as_if_a_process() -> Iterator[None]:
    """Give back the signal and the log that a stage's process takes for itself."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    handlers = logging.root.handlers[:]
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
        for handler in logging.root.handlers[:]:
            if handler not in handlers:
                logging.root.removeHandler(handler)
                handler.close()
