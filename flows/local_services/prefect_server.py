"""`prefect server start`, closed to foreign web pages, with SQLite transactions that wait.

The server is wrapped in `OwnPagesOnly`, because Prefect checks neither `Host` nor WebSockets.

Prefect starts a transaction with `BEGIN DEFERRED`: it takes the write lock at its first write. If
another transaction has written since its first read, SQLite refuses that write at once with
"database is locked", and no busy timeout applies. Prefect answers 503, and clients wait seconds and
repeat the request. With `BEGIN IMMEDIATE` a transaction takes the lock at its start, after waiting
for it up to Prefect's busy timeout of 60 s. docs/benchmarks.md has the difference.

Automations get the events of a run in order: an event waits for the one before it, for 15 minutes.
A restarted server has forgotten which events came before, so a run that crashes then would be
resumed 15 minutes late. Here an event waits for `ORDER_SECONDS`.

Usage: `python -m flows.local_services.prefect_server --host 127.0.0.1 --port 4200`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import sqlalchemy
from prefect.cli import app
from prefect.server.api import server
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.events.ordering import memory as order_of_events
from prefect.settings import PREFECT_SERVER_CORS_ALLOWED_ORIGINS
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction
from starlette.types import ASGIApp

from flows.local_services.own_pages import OwnPagesOnly

ORDER_SECONDS = 15
"""Events of one machine arrive within milliseconds of each other."""

_begin = AioSqliteConfiguration.begin_transaction
_create_app = server.create_app


@asynccontextmanager
async def _begin_immediate(
    self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = False
) -> AsyncGenerator[AsyncSessionTransaction]:
    """Begin a transaction that holds the write lock, whether or not the caller asks for it."""
    del with_for_update
    async with _begin(self, session, with_for_update=True) as transaction:
        yield transaction


def _create_guarded_app(*, final: bool = False, **options: Any) -> ASGIApp:
    """Create the server; only the one that listens (`final`) is guarded, not clients in memory."""
    created = _create_app(final=final, **options)
    if not final:
        return created
    return OwnPagesOnly(created, PREFECT_SERVER_CORS_ALLOWED_ORIGINS.value().split(","))


def main() -> None:
    """Run `prefect server start` in this process with the arguments of this command."""
    if not sqlalchemy.__version__.startswith("2.0."):
        sys.exit(
            f"expected SQLAlchemy 2.0, found {sqlalchemy.__version__}: with it Prefect's scheduler "
            "creates no runs; install the version of requirements/, e.g. with `make venv`"
        )
    # uvicorn serves any ASGI application
    server.create_app = _create_guarded_app  # pyright: ignore[reportAttributeAccessIssue]
    AioSqliteConfiguration.begin_transaction = _begin_immediate
    order_of_events.PRECEDING_EVENT_LOOKBACK = timedelta(  # pyright: ignore[reportPrivateImportUsage]
        seconds=ORDER_SECONDS
    )
    sys.argv = ["prefect", "--no-prompt", "server", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
