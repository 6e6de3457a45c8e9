"""The reason why an attempt ended, as an error; its class decides about a retry."""

from __future__ import annotations

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from stages.attempt import Attempt
from stages.runtime.error_record import read_error
from stages.runtime.exit_codes import ending_of
from stages.runtime.ray_cluster import JobInfo
from training_core.errors import RatchetError, TransientError


def failure_of(attempt: Attempt, info: JobInfo) -> RatchetError:
    """Turn the end of an attempt without a manifest into an error.

    Returns:
        A permanent error if a person must fix the cause, else a `TransientError`.
    """
    recorded = read_error(attempt)
    where = f"{attempt.job_id} (log: {attempt.log})"
    if recorded:
        ending = ending_of(int(recorded["code"]))
        kind = ending.becomes if ending else TransientError
        return kind(f"{recorded['kind']}: {recorded['message']} [{where}]")
    ending = ending_of(info.exit_code)
    if ending is None or ending.is_transient:
        return TransientError(
            f"{where} was lost: status {info.status}, exit code {info.exit_code}. {info.message}"
        )
    # e.g. a full disk, on which error.json cannot be written
    return ending.becomes(
        f"{where} ended with exit code {info.exit_code} ({ending.words}): {info.message}"
    )


def is_transient(task: Task[..., object], task_run: TaskRun, state: State) -> bool:
    """Return whether Prefect must retry the task."""
    del task, task_run
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError)
