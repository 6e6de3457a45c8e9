"""Every command of the README and the pages is typed as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.flows import Flow

from flows.local_services.health import POOL
from tests.lifecycle.driver import Lifecycle

pytestmark = pytest.mark.lifecycle

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
COMMAND = re.compile(r"^    ((?:prefect|ratchet) (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)

PRINTED_ID = re.compile(r"(?:UUID: |^id +)([0-9a-f-]{36})")
"""What `prefect deployment run` and `ratchet run` print of the run that they have created."""

# What ends or starts services is typed by the fixture `lifecycle`, llama3-8b needs the hub, and
# servers do not end by themselves. The commands of docs/using_models.md, and those of
# docs/quickstart.md for files of a person, are run by tests/flows.
LEFT_OUT = re.compile(
    r"ratchet (up|down|deploy|merge <|serve-reward|generate|chat|score|export|push|serve |new )"
    r"|llama3-8b| mine/"
)


def commands(tool: str) -> list[str]:
    found = [found for page in PAGES for found in COMMAND.findall(page.read_text())]
    typed = {re.sub(r" +# .*", "", each) for each in found if each.startswith(f"{tool} ")}
    return sorted(each for each in typed if not LEFT_OUT.search(each))


def activated(lifecycle: Lifecycle) -> dict[str, str]:
    """As after `source .venv/bin/activate && eval "$(ratchet env)"`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**lifecycle.environment, "PATH": path}


def starts_a_run(command: str) -> bool:
    return command.startswith(("prefect ", "ratchet run "))


STARTING = [*commands("prefect"), *filter(starts_a_run, commands("ratchet"))]
OTHERS = [command for command in commands("ratchet") if not starts_a_run(command)]


def test_there_are_commands_to_type():
    assert "ratchet run tiny ppo.kl_coef=0.1" in STARTING
    assert "prefect deployment run full-rlhf/tiny --watch" in commands("prefect")
    assert "ratchet data check tiny" in commands("ratchet")
    assert len(commands("prefect")) >= 7


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_of_ratchet_does_what_the_page_shows(lifecycle: Lifecycle, command: str) -> None:
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env=activated(lifecycle),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sft" in done.stdout


@pytest.fixture(scope="module")
def nothing_starts(lifecycle: Lifecycle) -> Iterator[None]:
    """The worker takes no runs, so that what a command has created can be looked at."""
    lifecycle.client.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))
    yield
    lifecycle.client.update_work_pool(POOL, WorkPoolUpdate(is_paused=False))


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("command", STARTING)
def test_a_run_is_accepted_as_a_person_types_it(lifecycle: Lifecycle, command: str) -> None:
    with typed(lifecycle, command) as run:
        assert run.deployment_id is not None
        deployment = lifecycle.client.read_deployment(run.deployment_id)
        module, _, name = str(deployment.entrypoint).removesuffix(".py").partition(".py:")
        flow = getattr(import_module(module.replace("/", ".")), name)
        assert isinstance(flow, Flow)
        flow.validate_parameters(run.parameters)  # the flow's process does that first of all
        assert run.parameters["preset"] == "tiny"


@contextmanager
def typed(lifecycle: Lifecycle, command: str) -> Iterator[FlowRun]:
    """Type a command, yield the run that it prints, and delete that.

    `ratchet run` is typed with `--detach`: it would wait for a run that does not start.
    """
    shell = subprocess.Popen(
        command if command.startswith("prefect ") else f"{command} --detach",
        shell=True,
        cwd=ROOT,
        env={**activated(lifecycle), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        printed = (PRINTED_ID.search(line) for line in shell.stdout)
        found = next(filter(None, printed))
        if "--watch" not in command:
            assert shell.wait(timeout=300) == 0
        yield lifecycle.client.read_flow_run(UUID(found[1]))
        lifecycle.client.delete_flow_run(UUID(found[1]))
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate()
