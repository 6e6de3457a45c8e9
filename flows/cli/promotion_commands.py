"""The commands by which a person decides about a champion; `main` adds them to `ratchet`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.run_commands import Run
from training_core.errors import ConfigError

app = typer.Typer()

NameOption = Annotated[str, typer.Option(help="Your name, for the ledger.")]
Reason = Annotated[str, typer.Option(help="Why, for the ledger.")]


@app.command()
def approve(
    run: Run,
    *,
    name: NameOption,
    reason: Reason,
    reject: Annotated[bool, typer.Option("--reject", help="Refuse the candidate.")] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Leave it a candidate, which may be judged again.")
    ] = False,
) -> None:
    """Answer a run that is suspended until a person approves its candidate.

    Without --reject and --hold the candidate becomes champion. The run goes on with the answer.
    """
    from flows.cli.decide import answer

    if reject and hold:
        raise ConfigError("expected --reject or --hold, found both; choose one")
    answer(run, "reject" if reject else "hold" if hold else "approve", name, reason)


@app.command()
def rollback(
    lifecycle: Annotated[
        str, typer.Argument(help="Its name, e.g. tiny for the model tiny.policy.")
    ],
    *,
    name: NameOption,
    reason: Reason,
    to: Annotated[
        int | None,
        typer.Option(
            help="Number of a version that was champion. By default the one before.", min=1
        ),
    ] = None,
) -> None:
    """Make a former champion the champion again; no service but MLflow is needed."""
    from flows.cli.decide import roll_back

    roll_back(lifecycle, to, name, reason)
