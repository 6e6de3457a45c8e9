"""`ratchet demo`: the whole lifecycle on this machine, with a live table and a summary."""

from __future__ import annotations

from flows.cli import services
from flows.cli.deploy import deploy
from flows.cli.run_results import summary_of
from flows.cli.session import open_session
from flows.cli.start_run import start_deployment
from flows.cli.terminal import Terminal
from flows.cli.watch_run import tell_started, watch_run


def demo(deployment: str = "full-rlhf/tiny") -> int:
    """Start the services, deploy, run a deployment, and show its results.

    Args:
        deployment: `<flow>/<deployment>`, one that ends with a lifecycle report.

    Returns:
        The exit code: 0 if the run completed and its policy is the champion, 130 if it was left
        with Ctrl-C, otherwise 1.
    """
    console = Terminal()
    services.up()
    console.print("deploying …")
    deploy()
    console.print(f"$ prefect deployment run {deployment}", style="bold")
    with open_session() as session:
        started = start_deployment(session.client, deployment)
        tell_started(session, started, console)
        code = watch_run(session, started.id, console)
        summary = summary_of(session, started.id)
    if code == 0 and not (summary and summary["is_champion"]):
        return 1
    return code
