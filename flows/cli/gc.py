"""`ratchet gc`: delete what the store no longer needs."""

from __future__ import annotations

import time

from rich.table import Table

from flows.cli import terminal
from flows.cli.terminal import Terminal
from flows.model_use.named_model import connections_here
from stages.runtime.leftovers import leftovers
from tasks.formatting import moment

DAY = 86400
GIB = 1024**3
SHOWN = 20


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
    Terminal().print(table)
    if len(found) > SHOWN:
        terminal.echo(f"and {len(found) - SHOWN} smaller ones")
    total = f"{len(found)} folders with {sum(each.size for each in found) / GIB:.3f} GiB"
    if not delete:
        terminal.echo(f"{total} may be deleted; `ratchet gc --delete` does so")
        return
    for each in found:
        each.delete()
    terminal.echo(f"{total} were deleted")
