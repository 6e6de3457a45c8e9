"""The `ratchet` command.

Each command imports what it needs when it runs: prefect, mlflow and torch take seconds to import,
and `ratchet --help` needs none of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """Prints the errors that Ratchet raises on purpose without a traceback."""

    def invoke(self, ctx: Any) -> object:
        """Run a command; exit with code 1 if it raises one of Ratchet's own errors."""
        from training_core.errors import RatchetError

        try:
            return super().invoke(ctx)
        except RatchetError as error:
            typer.secho(str(error), fg=typer.colors.RED, err=True)
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
) -> None:
    """Start Prefect, MLflow, Ray and a worker on this machine, each unless it runs already."""
    from flows.cli import services

    services.up(ray_cpus=ray_cpus, with_worker=worker)
    services.status()


@app.command()
def status() -> None:
    """Show the services. Exit code 0 if all are up, else 1."""
    from flows.cli import services

    raise typer.Exit(0 if services.status() else 1)


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

    for name in deployment.deploy():
        typer.echo(name)


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

    raise typer.Exit(0 if run_demo(deployment) else 1)


@app.command()
def plan(
    preset: Annotated[str, typer.Argument(help="A file of deployments/presets.")],
    assignments: Annotated[
        list[str] | None, typer.Argument(help="Changes to the preset, e.g. ppo.kl_coef=0.1.")
    ] = None,
    flow: Annotated[str, typer.Option(help="full-rlhf, iterative-dpo or raft.")] = "full-rlhf",
) -> None:
    """Show which steps of a run are done, why the others are not, and what is missing."""
    from flows.cli.plan import show_plan
    from flows.config.presets import parse_assignments

    raise typer.Exit(0 if show_plan(preset, flow, parse_assignments(assignments or [])) else 1)


@data_app.command("check")
def data_check(
    preset: Annotated[str, typer.Argument(help="A file of deployments/presets.")],
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
    from tasks.connections import connect

    for ref in connect().registry.resync(lifecycle):
        typer.echo(ref.uri)


@app.command()
def merge(
    base: Annotated[str, typer.Argument(help="Directory or hub id of the full model.")],
    adapter: Annotated[Path, typer.Argument(help="Directory that PEFT wrote.")],
    output: Annotated[Path, typer.Argument(help="New directory for the merged model.")],
    reward_model: Annotated[
        bool,
        typer.Option("--reward-model", help="It is a reward model: keep the head that scores."),
    ] = False,
) -> None:
    """Merge a PEFT adapter into its base model, and write the full model with its tokenizer."""
    from training_core.models.merging import merge as merge_adapter

    merge_adapter(base, adapter, output, is_reward_model=reward_model)
    typer.echo(output)


if __name__ == "__main__":
    app()
