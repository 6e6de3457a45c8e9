"""The commands that start and watch lifecycles; `main` adds them to `ratchet`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.shared_options import ChangesArgument, FlowOption, PresetArgument

app = typer.Typer()

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Name (of several, the newest), id, or start of the id."),
]


@app.command()
def demo(
    deployment: Annotated[
        str, typer.Argument(help="What to run: <flow>/<deployment>.")
    ] = "full-rlhf/tiny",
) -> None:
    """Start the services, deploy, run the whole lifecycle, and show its results.

    Exit code 0 only if the run completed and its policy is champion.
    """
    from flows.cli.demo import demo as run_demo

    raise typer.Exit(run_demo(deployment))


@app.command()
def run(
    preset: PresetArgument,
    assignments: ChangesArgument = None,
    *,
    flow: FlowOption = "full-rlhf",
    force: Annotated[
        list[str] | None, typer.Option(metavar="STEP", help="Do this step again; repeatable.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print where the run is, and do not wait for it.")
    ] = False,
) -> None:
    """Start a lifecycle and watch it; Ctrl-C leaves it going, if you want that.

    Exit code 0 if the run completed, 1 if it did not, 130 if it was left.
    """
    from flows.cli.watch_run import run as run_lifecycle
    from flows.config.presets import parse_assignments

    changes = parse_assignments(assignments or [])
    raise typer.Exit(run_lifecycle(preset, flow, changes, force or [], is_detached=detach))


@app.command()
def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Name, id, or start of the id. By default the newest run.",
        ),
    ] = None,
) -> None:
    """Watch a run that goes on, or show how it ended. Exit codes as for `ratchet run`."""
    from flows.cli.watch_run import watch as watch_named

    raise typer.Exit(watch_named(run))


@app.command()
def runs(
    limit: Annotated[int, typer.Option(help="How many runs at most.", min=1)] = 20,
) -> None:
    """List the newest runs with their states and steps."""
    from flows.cli.list_runs import list_runs

    list_runs(limit)


@app.command()
def cancel(run: Run) -> None:
    """Cancel a run, and the jobs that no other run waits for. Finished steps are kept."""
    from flows.cli.change_run import cancel as cancel_named

    cancel_named(run)


@app.command()
def retry(run: Run) -> None:
    """Start a run again that failed, crashed or was cancelled, with the same inputs."""
    from flows.cli.change_run import retry as retry_named

    retry_named(run)


@app.command()
def logs(
    run: Run,
    step: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="The log of this step, e.g. sft.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends.")
    ] = False,
) -> None:
    """Print the log of a run, or of the newest attempt at one of its steps."""
    from flows.cli.show_logs import show_logs

    show_logs(run, step, is_followed=follow)
