"""`ratchet deploy`: everything that Ratchet keeps in a Prefect server.

A work pool, a queue that runs one round of iterative DPO at a time, two automations, and the
deployments of `deployments/prefect.yaml`. Non-interactive. A second run changes nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from flows.cli.automations import crashed_runs_resume, lost_runs_crash
from flows.cli.session import api_url_of
from flows.config.preset_form import is_form, with_values_of
from flows.config.presets import load_config
from flows.local_services.environment import worker_environment
from flows.local_services.health import POOL
from flows.local_services.paths import home_folder, project_root
from flows.local_services.state import ServiceError, load_records
from stages.safe_text import redacted
from training_core.errors import ConfigError

QUEUE = "iterative"


def deploy(home: Path | None = None) -> list[str]:
    """Create or update the pool, the queue, the automations and all deployments.

    Args:
        home: whose server to deploy to, unless PREFECT_API_URL names one.

    Returns:
        The pool's deployments, as `<flow>/<deployment>`.

    Raises:
        ServiceError: no server answers, or a deployment was refused.
    """
    home = home or home_folder()
    api_url = api_url_of(home)
    with temporary_settings({PREFECT_API_URL: api_url}), get_client(sync_client=True) as client:
        _ensure_pool(client)
        _ensure_queue(client)
        for automation in (lost_runs_crash(), crashed_runs_resume()):
            _ensure_automation(client, automation)
        switches = _switches(client)
        _deploy_all(home, api_url)
        _show_presets(client)
        _restore(client, switches)
        return _deployment_names(client)


def _ensure_pool(client: SyncPrefectClient) -> None:
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        pool = WorkPoolCreate(name=POOL, type="process", base_job_template=template)
        client.create_work_pool(pool)


def _ensure_queue(client: SyncPrefectClient) -> None:
    try:
        queue = client.read_work_queue_by_name(QUEUE, work_pool_name=POOL)
    except ObjectNotFound:
        client.create_work_queue(QUEUE, concurrency_limit=1, work_pool_name=POOL)
    else:
        client.update_work_queue(queue.id, concurrency_limit=1)


def _ensure_automation(client: SyncPrefectClient, wanted: AutomationCore) -> None:
    """Create or update by name; one that a person has paused stays paused.

    Of several with this name, the one that was changed last stays.
    """
    present = client.read_automations_by_name(wanted.name)
    if not present:
        client.create_automation(wanted)
        return
    first, *doubles = present
    # Only if needed: at an update the server forgets which crashed and silent runs it watches.
    if _definition(first) != _definition(wanted):
        paused = wanted.model_copy(update={"enabled": first.enabled})
        client.update_automation(first.id, paused)
    for double in doubles:
        client.delete_automation(double.id)


def _definition(automation: AutomationCore) -> dict[str, object]:
    return automation.model_dump(include={"name", "description", "trigger", "actions"})


def _deploy_all(home: Path, api_url: str) -> None:
    # Prefect's command line and not its Python API: only the command line reads prefect.yaml as
    # Prefect's documentation says. It takes about a second for each deployment.
    command = (sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all")
    file = ("--prefect-file", str(Path("deployments", "prefect.yaml")))
    environment = worker_environment(home, load_records(home)) | {
        "PREFECT_API_URL": api_url,
        "RATCHET_ROOT": str(project_root()),
        # Wide enough not to cut a message.
        "COLUMNS": "200",
    }
    done = subprocess.run(
        (*command, *file),
        cwd=project_root(),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        told = redacted(done.stdout + done.stderr)
        raise ServiceError(
            f"`prefect deploy` of deployments/prefect.yaml ended with {done.returncode}; correct "
            f"the entry or flow that it names and deploy again:\n{told}"
        )


def _show_presets(client: SyncPrefectClient) -> None:
    """Tell in the form of each deployment what its preset sets."""
    for deployment in _deployments(client):
        schema, preset = deployment.parameter_openapi_schema, deployment.parameters.get("preset")
        if preset is None or schema is None or not is_form(schema):
            continue
        try:
            config = load_config(str(preset))
        except ConfigError:  # a run of it says what is wrong; one of another preset can start
            continue
        form = with_values_of(schema, str(preset), config)
        client.update_deployment(deployment.id, DeploymentUpdate(parameter_openapi_schema=form))


def _switches(client: SyncPrefectClient) -> dict[tuple[UUID, str | None], bool]:
    """Return which schedules are on, by deployment and slug."""
    return {
        (deployment.id, schedule.slug): schedule.active
        for deployment in _deployments(client)
        for schedule in deployment.schedules
    }


def _restore(client: SyncPrefectClient, switches: Mapping[tuple[UUID, str | None], bool]) -> None:
    """Switch schedules on or off as a person left them; prefect.yaml decides for new ones only."""
    for deployment in _deployments(client):
        for schedule in deployment.schedules:
            wanted = switches.get((deployment.id, schedule.slug), schedule.active)
            if wanted != schedule.active:
                client.update_deployment_schedule(deployment.id, schedule.id, active=wanted)


def _deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return client.read_deployments(work_pool_filter=pool)


def _deployment_names(client: SyncPrefectClient) -> list[str]:
    deployments = _deployments(client)
    flows = {deployment.flow_id for deployment in deployments}
    names = {flow_id: client.read_flow(flow_id).name for flow_id in flows}
    return sorted(f"{names[each.flow_id]}/{each.name}" for each in deployments)
