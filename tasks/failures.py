"""Why an attempt ended, as an error that says whether to try again."""

from __future__ import annotations

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from stages.attempt import Attempt
from stages.contract import ExitCode
from stages.runtime.error_record import read_error
from stages.runtime.ray_cluster import JobInfo
from training_core.errors import (
    InputError,
    MismatchError,
    NonFiniteError,
    RatchetError,
    StorageFullError,
    TransientError,
)

PERMANENT: dict[int, type[RatchetError]] = {
    ExitCode.BAD_INPUT: InputError,
    ExitCode.NON_FINITE: NonFiniteError,
    ExitCode.MISMATCH: MismatchError,
    ExitCode.DISK_FULL: StorageFullError,
}
PYTHON_ERROR = 1
"""Exit code of an uncaught exception: a bug or a missing package, which another try meets again."""


def failure_of(attempt: Attempt, info: JobInfo) -> RatchetError:
    """Turn the end of an attempt without a manifest into an error.

    Returns:
        A permanent error for what a person has to mend, else a `TransientError`.
    """
    recorded = read_error(attempt)
    where = f"{attempt.job_id} (log: {attempt.log})"
    if recorded:
        kind = PERMANENT.get(int(recorded["code"]), TransientError)
        return kind(f"{recorded['kind']}: {recorded['message']} [{where}]")
    if kind := PERMANENT.get(info.exit_code or ExitCode.DONE):  # a full disk takes no error.json
        return kind(f"{where} ended with exit code {info.exit_code}: {info.message}")
    if info.exit_code == PYTHON_ERROR:
        return InputError(f"{where} ended with an uncaught error: {info.message}")
    return TransientError(
        f"{where} was lost: status {info.status}, exit code {info.exit_code}. {info.message}"
    )


def is_transient(task: Task[..., object], task_run: TaskRun, state: State) -> bool:
    """Prefect's question whether to retry."""
    del task, task_run
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError)
