"""Start a lifecycle: check preset and changes here, then create a run of a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from flows.cli.recipes import recipe_of
from flows.config.presets import SUFFIX, file_of, load_config
from flows.recipe.outline import outline_of, require_steps
from flows.recipe.run_name import describe
from training_core.errors import ConfigError

FIRST_CHOICE = "tiny"
"""The deployment that runs presets without one of their own; every flow has it."""


def check_run(
    preset: str, flow: str, overrides: Mapping[str, object], force: Sequence[str] = ()
) -> dict[str, object]:
    """Check what a person has asked for, without any service.

    Args:
        preset: a name, or the path of a .yaml file.
        flow: its name.
        overrides: changes to the preset.
        force: steps to do again.

    Returns:
        The parameters of the flow run. A path is absolute in them.

    Raises:
        ConfigError: for an unknown flow, preset, key, value or step.
    """
    steps = recipe_of(flow)
    outline = outline_of(steps, load_config(preset, overrides))
    require_steps(force, list(outline.refs))
    is_file = preset.endswith(SUFFIX)
    return {
        "preset": str(file_of(preset).resolve()) if is_file else preset,
        "force": list(force),
        "overrides": dict(overrides),
    }


def start_run(client: SyncPrefectClient, flow: str, parameters: Mapping[str, object]) -> FlowRun:
    """Create a run of a flow that `check_run` has checked.

    It is a run of the deployment `<flow>/<preset>`; of another one if the preset has none.

    Raises:
        ConfigError: if the flow has no deployment.
    """
    preset = Path(str(parameters["preset"]))
    found = _deployments(client, flow)
    if not found:
        raise ConfigError(f"the flow {flow} has no deployment yet; run `ratchet deploy`")
    own = [each for each in found if each.name == str(preset)]
    others = sorted(found, key=lambda each: (each.name != FIRST_CHOICE, each.name))
    # Without a name Prefect makes one up, which a flow replaces only when it starts.
    name = describe({**parameters, "preset": preset.stem}, ("preset",))
    return client.create_flow_run_from_deployment(
        (own or others)[0].id, parameters=dict(parameters), name=name
    )


def start_deployment(client: SyncPrefectClient, deployment: str) -> FlowRun:
    """Create a run of a deployment as it is, `<flow>/<deployment>`.

    Raises:
        ConfigError: if there is no such deployment.
    """
    try:
        found = client.read_deployment_by_name(deployment)
    except (ObjectNotFound, ValueError) as error:
        raise ConfigError(
            f"there is no deployment '{deployment}'; `prefect deployment ls` lists them"
        ) from error
    return client.create_flow_run_from_deployment(found.id)


def _deployments(client: SyncPrefectClient, flow: str) -> list[DeploymentResponse]:
    """Return the deployments of a flow that take a preset."""
    of_flow = FlowFilter(name=FlowFilterName(any_=[flow]))
    found = client.read_deployments(flow_filter=of_flow)
    return [each for each in found if "preset" in each.parameters]
