"""The connection to an MLflow server; translates its errors into Ratchet's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.tracking._model_registry.client import ModelRegistryClient

from stages.safe_text import redacted
from training_core.errors import ConfigError, TransientError

TOO_MANY_REQUESTS, SERVER_FAULT = 429, 500  # HTTP statuses

# MLflow's 7 retries would block for four minutes if the server is down; Prefect retries the task.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")


class MlflowConnection:
    """An MLflow server.

    Args:
        tracking_uri: `http://host:port`, or `http://user:password@host:port`; model versions and
            runs are on the same server.
    """

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri.rstrip("/")
        self.address = redacted(self.tracking_uri)
        self.client = MlflowClient(self.tracking_uri, self.tracking_uri)
        # Part of the other. Only for aliases: there MlflowClient reads all versions of the model
        # first, because it refuses to set an alias of a prompt.
        self.aliases = ModelRegistryClient(self.tracking_uri, self.tracking_uri)


class Connected(Protocol):
    """An object with a connection to an MLflow server."""

    @property
    def mlflow(self) -> MlflowConnection:
        """The connection."""
        ...


S = TypeVar("S", bound=Connected)
P = ParamSpec("P")
R = TypeVar("R")


def translated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Replace MLflow's errors in `method` by Ratchet's."""

    @wraps(method)
    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except MlflowException as error:
            # Not chained, because MLflow's text contains the address with the password.
            status, found = error.get_http_status_code(), redacted(str(error.message))
            if status >= SERVER_FAULT or status == TOO_MANY_REQUESTS:
                raise TransientError(
                    f"expected an MLflow server at {self.mlflow.address}, found: {found}; "
                    "nothing is lost, try again when it is back"
                ) from None
            raise ConfigError(f"MLflow at {self.mlflow.address} refuses: {found}") from None

    return call


@contextmanager
def unless_it_exists() -> Iterator[None]:
    """Ignore the error if another process created the same object first."""
    try:
        yield
    except MlflowException as error:
        # Of two inserts at the same moment, MLflow's database refuses one: "IntegrityError".
        has_lost = "IntegrityError" in str(error.message)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" and not has_lost:
            raise


def milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, MLflow's unit of time."""
    return int(seconds * 1000)
