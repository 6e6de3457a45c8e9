"""Errors that Ratchet raises on purpose, in the log of a flow run: the message, no traceback."""

from __future__ import annotations

import logging

from training_core.errors import RatchetError

LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
"""Prefect's loggers of a flow, of its tasks and of the process that runs them."""


def tell_foreseen_errors_briefly() -> None:
    """Keep tracebacks of `RatchetError` out of the logs, unless PREFECT_LOGGING_LEVEL is DEBUG."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Shorten a record; it is never dropped."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RatchetError):
        message = record.getMessage().replace(repr(error), str(error))
        record.msg = message if str(error) in message else f"{message}: {error}"
        record.args = None
        if not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            record.exc_info = None
    return True
