"""Do one stage on this machine, as a process of its own, without Ray and without a flow."""

from __future__ import annotations

from collections.abc import Mapping

from stages.files import write_text
from stages.runtime.error_record import read_error
from stages.runtime.manifest import Manifest
from stages.runtime.store import Request, Store
from stages.runtime.worker_processes import start_stage
from training_core.errors import RatchetError


class LocalRunError(RatchetError):
    """A stage that was done on this machine has failed."""


def run_here(
    store: Store, request: Request, variables: Mapping[str, str] | None = None
) -> Manifest:
    """Return the manifest of a stage; do the stage if the store does not have it.

    A stage that was interrupted goes on from its newest checkpoint.

    Args:
        store: gets the result.
        request: of the stage; its inputs are in some store on this machine.
        variables: of the process's environment, in addition to those of this process.

    Raises:
        LocalRunError: if the process failed; the message has its reason and its log.
    """
    if found := store.find(request.stage, request.key):
        return found
    number = len(store.attempts(request.stage, request.key)) + 1
    attempt = store.attempt(request.stage, request.key, f"a{number}")
    attempt.request.parent.mkdir(parents=True)
    write_text(attempt.request, request.model_dump_json(indent=2))
    with attempt.log.with_name("output.txt").open("ab") as output:
        code = start_stage(attempt.request, variables or {}, output.fileno()).wait()
    if found := store.find(request.stage, request.key):
        return found
    recorded = read_error(attempt)
    why = f"{recorded['kind']}: {recorded['message']}" if recorded else f"exit code {code}"
    raise LocalRunError(f"step '{request.step}' failed: {why} [log: {attempt.log}]")
