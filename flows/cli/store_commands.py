"""The commands about a store: what it remembers, and what it no longer needs; see `main`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()

RESULT = "<lifecycle>@<alias>, e.g. tiny@champion; <lifecycle>/<version>; or <stage>/<stage key>"


@app.command()
def lineage(
    result: Annotated[str, typer.Argument(metavar="RESULT", help=f"{RESULT}.")],
    *,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a Mermaid flowchart, e.g. for a page.")
    ] = False,
) -> None:
    """Show what made a model or dataset, with its data, and what was made from it."""
    from flows.cli.show_lineage import show_lineage

    show_lineage(result, as_mermaid=mermaid)


@app.command()
def taint(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help=f"A dataset or base model: a hub id, the path or the name of a file; or {RESULT}.",
        ),
    ],
) -> None:
    """Show all that a dataset, base model or result has touched, and what must be made again."""
    from flows.cli.show_lineage import show_taint

    show_taint(source)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RESULT", help=f"{RESULT}.")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="Another one.")],
) -> None:
    """Show two results side by side: metrics, what differs in the configs behind them, time."""
    from flows.cli.compare import compare as compare_results

    compare_results(first, second)


@app.command()
def receipt(
    result: Annotated[str, typer.Argument(metavar="RESULT", help=f"{RESULT}.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="File to write. By default the receipt is printed.")
    ] = None,
) -> None:
    """Write how a result was made: every stage before it, with config, data, packages, machine."""
    from flows.cli.reproduce import write_receipt_of

    write_receipt_of(result, out)


@app.command()
def reproduce(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="Of `ratchet receipt`.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder of the results, e.g. an empty one.")],
    move: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Where a path of the receipt is here; repeatable."),
    ] = None,
) -> None:
    """Make the stages of a receipt again on this machine, and compare every byte.

    No service is needed. Exit code 1 if a result differs; what differs is printed.
    """
    from flows.cli.reproduce import reproduce as make_again

    raise typer.Exit(0 if make_again(receipt, out, move or []) else 1)


@app.command()
def gc(
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it. Without this it is only listed.")
    ] = False,
    older_than: Annotated[
        float, typer.Option(help="Days since the last file was written, or a run used it.", min=0)
    ] = 7.0,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            help="Results instead: those that no promotion, alias or younger run reaches.",
        ),
    ] = False,
) -> None:
    """List or delete checkpoints of finished stages and files of attempts that came to nothing."""
    from flows.cli.gc import collect_garbage, collect_results

    collect = collect_results if results else collect_garbage
    collect(older_than_days=older_than, delete=delete)
