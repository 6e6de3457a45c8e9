"""Drive stages through a store, as a flow would."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.catalog import find_stage
from stages.identity import stage_key
from stages.process import run_request
from stages.store import Manifest, Request, Store

torch.set_num_threads(1)  # the models are too small for more, and the machine may be busy

Parents = Mapping[str, Manifest]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def write_request() -> Callable[..., Path]:
    """Write what a flow hands to a stage's process: `write_request(store, stage, config)`."""

    def write(
        store: Store,
        stage: str,
        config: Mapping[str, Any],
        parents: Parents | None = None,
        *,
        attempt: str = "a1",
    ) -> Path:
        parents = parents or {}
        spec = find_stage(stage)
        resolved = spec.config_class().model_validate(config)
        digests = {role: m.digest for role, m in parents.items()}
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
        directory = store.attempt_dir(stage, key, attempt)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "request.json"
        path.write_text(request.model_dump_json())
        return path

    return write


@pytest.fixture(scope="session")
def finish(
    write_request: Callable[..., Path], run_here: Callable[[Path], int]
) -> Callable[..., Manifest]:
    """Run a stage to its end in this process and return its manifest."""

    def finish(
        store: Store, stage: str, config: Mapping[str, Any], parents: Parents | None = None
    ) -> Manifest:
        path = write_request(store, stage, config, parents)
        code = run_here(path)
        error = path.with_name("error.json")
        assert code == 0, error.read_text()
        manifest = store.find(stage, path.parents[2].name)
        assert manifest is not None
        return manifest

    return finish


@pytest.fixture(scope="session")
def run_here() -> Callable[[Path], int]:
    """Run `python -m stages` without the process, and give back what it takes for itself."""

    def run(request: Path) -> int:
        on_sigterm = signal.getsignal(signal.SIGTERM)
        handlers = logging.root.handlers[:]
        try:
            return int(run_request(request))
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
            for handler in logging.root.handlers[:]:
                if handler not in handlers:
                    logging.root.removeHandler(handler)
                    handler.close()

    return run
