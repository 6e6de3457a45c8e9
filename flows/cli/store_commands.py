"""The commands about a store: what it remembers, and what it no longer needs; see `main`."""

from __future__ import annotations

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
def gc(
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it. Without this it is only listed.")
    ] = False,
    older_than: Annotated[
        float, typer.Option(help="Days since an attempt wrote its last file.", min=0)
    ] = 7.0,
) -> None:
    """List or delete checkpoints of finished stages and files of attempts that came to nothing."""
    from flows.cli.gc import collect_garbage

    collect_garbage(older_than_days=older_than, delete=delete)
