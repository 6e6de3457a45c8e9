"""Run one stage without flow, store and services, e.g. under a debugger.

Its folder is an attempt outside a store: `artifact/`, `metrics.jsonl`, `checkpoints/`, `log.txt`,
and `manifest.json` when it has finished. The same command resumes an unfinished run.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from stages.attempt import Attempt
from stages.catalog import find_stage
from stages.configs.block import StageConfig
from stages.configs.explanation import explain
from stages.configs.stage_record import StageRecord
from stages.contract import Context
from stages.files import write_text
from stages.runtime.execution import execute, log_to, report, stop_on_sigterm
from stages.runtime.exit_codes import ExitCode, code_of
from stages.runtime.manifest import Manifest, manifest_text
from stages.runtime.manifest_draft import draft_manifest
from stages.runtime.requests import read_request
from stages.runtime.sources import digests_of_sources, resolve_paths
from stages.runtime.stage_key import digest_of_tree, stage_key
from stages.runtime.store import MANIFEST, Request
from stages.runtime.trackers import open_sinks
from stages.safe_text import shown
from stages.strict_yaml import read_yaml
from training_core.errors import ConfigError, RatchetError

log = logging.getLogger("ratchet")


def run_standalone(
    stage: str, config_file: Path, inputs: Mapping[str, Path], out: Path
) -> ExitCode:
    """Run a stage in this process and print its results.

    Args:
        stage: name of the stage.
        config_file: the stage's config as YAML; relative paths in it start from its folder.
        inputs: directories by role.
        out: folder of the result; created if it does not exist.

    Returns:
        The exit code. Errors of known classes are printed on standard error; after the log is open,
        they are logged.
    """
    attempt, started = Attempt(out.resolve()), time.time()
    try:
        spec = find_stage(stage)
        config = read_config(spec, config_file)
        request = _request_for(spec, config, inputs)
        _claim(attempt, request)
    except (RatchetError, ValidationError, OSError) as error:
        sys.stderr.write(f"{shown(error)}\n")
        return code_of(error)
    log_to(attempt.log)
    stop = stop_on_sigterm()
    try:
        with open_sinks(attempt, request, config.logging) as sink:
            digests = request.input_digests
            context = Context(attempt, sink, should_stop=stop.is_set, input_digests=digests)
            result = execute(request, config, context)
        manifest = draft_manifest(request, config, result, attempt, started=started)
        write_text(attempt.directory / MANIFEST, manifest_text(manifest))
    except (RatchetError, ValidationError, OSError) as error:
        return report(error, attempt)
    sys.stdout.write(shown(_summary(manifest, attempt)))
    return ExitCode.DONE


def read_config(spec: StageRecord, path: Path) -> StageConfig:
    """Read a stage's config from a YAML file.

    Raises:
        ConfigError: if the file is not a valid config; the message names all wrong keys and values.
    """
    content = read_yaml(path)
    if not isinstance(content, dict | None):
        raise ConfigError(
            f"expected the fields of a {spec.name} config in {path}, found {content!r:.80}; "
            "write one `field: value` per line"
        )
    try:
        config = spec.config.model_validate(content or {})
    except ValidationError as error:
        told = explain(error, spec.config)
        raise ConfigError(f"{path} is not a config of stage '{spec.name}':\n  {told}") from error
    return resolve_paths(config, path.resolve().parent)


def _request_for(spec: StageRecord, config: StageConfig, inputs: Mapping[str, Path]) -> Request:
    if config.resources.num_workers > 1:
        raise ConfigError(
            f"resources.num_workers is {config.resources.num_workers}, but a stage by itself "
            "runs in one process, for a debugger; set it to 1"
        )
    spec.require_roles(inputs)
    for role, directory in inputs.items():
        if not directory.is_dir():
            raise ConfigError(f"input {role}: there is no directory {directory}")
        made = Attempt(directory)
        if made.artifact.is_dir():
            raise ConfigError(
                f"input {role}: {directory} is the folder of a stage's run; give its artifact, "
                f"{made.artifact}"
            )
    digests = {role: digest_of_tree(directory) for role, directory in inputs.items()}
    digests |= digests_of_sources(config)
    return Request(
        stage=spec.name,
        step=spec.name,
        key=stage_key(spec, config, digests),
        config=config.model_dump(mode="json"),
        inputs={role: str(directory.resolve()) for role, directory in inputs.items()},
        input_digests=digests,
        parents={},
    )


def _claim(attempt: Attempt, request: Request) -> None:
    """Write the request into a new folder, or into one with an unfinished run of the same key."""
    folder, otherwise = attempt.directory, "choose another --out, or delete that folder"
    if (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} holds a finished run; {otherwise}")
    if attempt.request.exists():
        begun = read_request(attempt.request)
        if begun.key != request.key:
            raise ConfigError(
                f"{folder} holds an unfinished run of stage '{begun.stage}' with another config or "
                f"other inputs (key {begun.key[:12]}, expected {request.key[:12]}); {otherwise}"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not the folder of a run; {otherwise}")
    write_text(attempt.request, request.model_dump_json(indent=2))
    attempt.error.unlink(missing_ok=True)


def _summary(manifest: Manifest, attempt: Attempt) -> str:
    lines = [
        f"{manifest.stage} is done in {manifest.cost['seconds']:.1f} s",
        f"  {manifest.kind:<24} {attempt.artifact}",
    ]
    if attempt.metrics.exists():
        lines.append(f"  {'curves':<24} {attempt.metrics}")
    lines += [f"  {name:<24} {value:.6g}" for name, value in manifest.metrics.items()]
    return "\n".join(lines) + "\n"
