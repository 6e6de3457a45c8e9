"""The `ratchet` command.

Each command imports what it needs when it runs: prefect, mlflow and torch take seconds to import,
and `ratchet --help` needs none of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flows.cli.model_commands import app as model_app
from flows.cli.new_command import app as new_app
from flows.cli.promotion_commands import app as promotion_app
from flows.cli.quick_imports import quick_imports
from flows.cli.run_commands import app as run_app
from flows.cli.shared_options import (
    ChangesArgument,
    FlowOption,
    HostOption,
    PortOption,
    PresetArgument,
    TokenVariableOption,
)
from flows.cli.store_commands import app as store_app


class Commands(TyperGroup):
    """Prints the errors that Ratchet raises on purpose without a traceback."""

    def invoke(self, ctx: Any) -> object:
        """Run a command; exit with code 1 if it raises one of Ratchet's own errors."""
        from training_core.errors import RatchetError

        try:
            return super().invoke(ctx)
        except RatchetError as error:
            from flows.cli import terminal

            terminal.tell_error(error)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=Commands,
    name="ratchet",
    help="From a base model to an aligned model, with Prefect, MLflow and Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

data_app = typer.Typer(cls=Commands, help="Look at datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(run_app)  # without a name: its commands are commands of `ratchet`
app.add_typer(new_app)  # likewise
app.add_typer(model_app)  # likewise
app.add_typer(store_app)
app.add_typer(promotion_app)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"ratchet {version('ratchet-rlhf')}")
        raise typer.Exit


@app.callback()
def ratchet(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Accept the options that stand before a command."""
    from flows.cli.terminal import quieten_libraries

    quieten_libraries()


@app.command()
def up(
    ray_cpus: Annotated[
        int | None,
        typer.Option(
            help="CPUs that Ray may give to jobs. By default all CPUs of this machine.", min=1
        ),
    ] = None,
    worker: Annotated[
        bool, typer.Option(help="Start a worker, which runs the flows of this machine.")
    ] = True,
    worker_limit: Annotated[
        int | None,
        typer.Option(help="Flow runs at once. By default twice the CPUs, but at least 8.", min=1),
    ] = None,
) -> None:
    """Start Prefect, MLflow, Ray and a worker on this machine, each unless it runs already."""
    from flows.cli import services

    services.up(ray_cpus=ray_cpus, with_worker=worker, worker_limit=worker_limit)
    services.status()


@app.command()
def status() -> None:
    """Show the services. Exit code 0 if all are up, else 1."""
    from flows.cli import services

    raise typer.Exit(0 if services.status() else 1)


@app.command()
def doctor() -> None:
    """Check packages, GPUs, memory, disk, secrets and servers. Exit code 1 if runs would fail."""
    from flows.cli import doctor as checkup

    raise typer.Exit(0 if checkup.doctor() else 1)


@app.command()
def down(
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also delete the databases, logs, artifacts and finished stages."
        ),
    ] = False,
) -> None:
    """Stop the services, running flows and Ray jobs. Their data is kept."""
    from flows.cli import services

    services.down(purge=purge)


@app.command()
def env() -> None:
    """Print export lines. After eval "$(ratchet env)" this shell's tools use the services."""
    from flows.cli import services

    services.env()


@app.command()
def deploy() -> None:
    """Create or update the pool, queue, automations and deployments. Non-interactive."""
    from flows.cli import deploy as deployment
    from flows.cli import terminal

    for name in deployment.deploy():
        terminal.echo(name)


@app.command()
def plan(
    preset: PresetArgument,
    assignments: ChangesArgument = None,
    flow: FlowOption = "full-rlhf",
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph of steps.")] = False,
) -> None:
    """Show which steps of a run are done, why the others are not, and what is missing."""
    from flows.cli.plan import show_plan
    from flows.cli.plan_graph import show_graph
    from flows.config.presets import parse_assignments

    show = show_graph if mermaid else show_plan
    raise typer.Exit(0 if show(preset, flow, parse_assignments(assignments or [])) else 1)


@app.command()
def preflight(
    preset: PresetArgument,
    assignments: ChangesArgument = None,
    flow: FlowOption = "full-rlhf",
    max_workers: Annotated[
        int | None, typer.Option(help="Workers of a step, at most. By default as many as it has.")
    ] = None,
) -> None:
    """Rehearse every step with tiny models and 32 rows on CPUs. Exit code 0 if all were done."""
    with quick_imports():
        from flows.cli.preflight import preflight as rehearse
        from flows.config.presets import parse_assignments

    changes = parse_assignments(assignments or [])
    raise typer.Exit(0 if rehearse(preset, flow, changes, max_workers=max_workers) else 1)


@data_app.command("check")
def data_check(
    preset: PresetArgument,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(help="Changes to the preset, e.g. sft.training.max_tokens=512."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="Check only this step, e.g. sft.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Read only the first rows of each dataset. All by default.", min=1),
    ] = None,
    examples: Annotated[int, typer.Option(help="Rows of each dataset to show.", min=0)] = 2,
) -> None:
    """Read and tokenise the datasets of a preset: lengths, trained tokens, problems.

    Exit code 1 if a problem would stop a step.
    """
    with quick_imports():
        from flows.cli.check_data import check_data
        from flows.config.presets import parse_assignments

    is_fine = check_data(
        preset,
        parse_assignments(assignments or []),
        step=step,
        first_rows=rows,
        num_examples=examples,
    )
    raise typer.Exit(0 if is_fine else 1)


@app.command()
def resync(
    lifecycle: Annotated[
        str, typer.Argument(help="Its name, e.g. tiny for the model tiny.policy.")
    ],
) -> None:
    """Register every finished stage of a lifecycle in MLflow again after its database was lost."""
    from flows.cli import terminal
    from flows.model_use.named_model import connections_here

    for ref in connections_here().registry.resync(lifecycle):
        terminal.echo(ref.uri)


@app.command("serve-reward")
def serve_reward(
    source: Annotated[
        str,
        typer.Argument(
            help="Reward model (<lifecycle>@<alias>, a directory, a hub id), or file.py:function."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the function, e.g. wrong=-1.0.")
    ] = None,
    *,
    host: HostOption = "127.0.0.1",
    port: PortOption = 5010,
    token_variable: TokenVariableOption = "RATCHET_REWARD_TOKEN",
    raw: Annotated[
        bool, typer.Option("--raw", help="Give a reward model's scores without normalising them.")
    ] = False,
) -> None:
    """Serve a reward over HTTP, for `reward: {name: http}` or OpenRLHF's remote reward model."""
    from flows.cli import serve_reward as service
    from flows.config.presets import parse_assignments

    service.serve_reward(
        source,
        parse_assignments(arguments or []),
        host=host,
        port=port,
        token_variable=token_variable,
        normalise=not raw,
    )


def main() -> None:
    """Run the command line; end with code 1 after an unexpected error, too."""
    import logging

    from stages.safe_text import SafeFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter())
    logging.basicConfig(handlers=[handler])
    try:
        app()
    except Exception:  # noqa: BLE001 - printed whole, but without passwords
        from flows.cli import terminal

        terminal.tell_unexpected_error()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
