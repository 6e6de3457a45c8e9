"""`ratchet gc`: delete what the store no longer needs."""

from __future__ import annotations

import time

from rich.table import Table

from flows.cli import terminal
from flows.cli.terminal import Terminal
from flows.model_use.named_model import connections_here
from flows.model_use.unreached import delete_result, unreached_results
from stages.runtime.leftovers import HOUR, leftovers
from tasks.formatting import moment

DAY = 86400
GIB = 1024**3
SHOWN, SHORT = 20, 12


def collect_results(*, older_than_days: float, delete: bool) -> None:
    """Print the results that nothing reaches, largest first, and delete them if asked to.

    Args:
        older_than_days: days since a result was made, and since a run has used it.
        delete: without it nothing is deleted.

    Raises:
        ConfigError: if store and registry are not known.
        TransientError: if MLflow does not answer; then nothing is deleted.
    """
    connections = connections_here()
    before = time.time() - max(older_than_days * DAY, HOUR)
    found = unreached_results(connections, younger_than=before)
    if not found:
        terminal.echo("every result is young, or a promotion, an alias or a young run reaches it")
        return
    table = Table("GiB", "step", "result", "made")
    for each in found[:SHOWN]:
        made = each.manifest
        result = f"{made.stage}/{made.key[:SHORT]}"
        table.add_row(f"{each.size / GIB:.3f}", made.step, result, moment(made.finished_at))
    _print(table, len(found))
    total = f"{len(found)} results with {sum(each.size for each in found) / GIB:.3f} GiB"
    if not delete:
        terminal.echo(f"{total} may be deleted; `ratchet gc --results --delete` does so")
        return
    for each in found:
        delete_result(each, connections.registry)
    terminal.echo(f"{total} were deleted, with their versions in MLflow")


def collect_garbage(*, older_than_days: float, delete: bool) -> None:
    """Print what may be deleted, largest first, and delete it if asked to.

    Args:
        older_than_days: days since an attempt wrote its last file.
        delete: without it nothing is deleted.

    Raises:
        ConfigError: if the store is not known.
    """
    store = connections_here().store
    found = leftovers(store, older_than=older_than_days * DAY, now=time.time())
    if not found:
        terminal.echo(f"{store.root} has nothing that is not needed")
        return
    table = Table("GiB", "what", "last written", "folder")
    for each in found[:SHOWN]:
        folder = str(each.path.relative_to(store.root))
        table.add_row(f"{each.size / GIB:.3f}", each.why, moment(each.written_at), folder)
    _print(table, len(found))
    total = f"{len(found)} folders with {sum(each.size for each in found) / GIB:.3f} GiB"
    if not delete:
        terminal.echo(f"{total} may be deleted; `ratchet gc --delete` does so")
        return
    for each in found:
        each.delete()
    terminal.echo(f"{total} were deleted")


def _print(table: Table, number: int) -> None:
    """Print the largest, and how many there are beside them."""
    Terminal().print(table)
    if number > SHOWN:
        terminal.echo(f"and {number - SHOWN} smaller ones")
