"""The local Prefect server's database when many write at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId

pytestmark = pytest.mark.services

MANY = 50


@flow
def nothing() -> None:
    """Is never run."""


def test_fifty_runs_submitted_at_once_are_all_accepted(client: SyncPrefectClient) -> None:
    deployment = client.create_deployment(client.create_flow(nothing), "many")

    async def submit() -> list[int]:
        # Not with Prefect's client, which would wait and repeat what is refused; the form does not.
        async with httpx.AsyncClient(base_url=str(client.api_url), timeout=120) as person:
            issued = (await person.get("csrf-token?client=form")).json()
            person.headers["Prefect-Csrf-Client"] = issued["client"]
            person.headers["Prefect-Csrf-Token"] = issued["token"]
            address = f"deployments/{deployment}/create_flow_run"
            return [
                answer.status_code
                for answer in await asyncio.gather(
                    *(person.post(address, json={"name": f"run {n}"}) for n in range(MANY))
                )
            ]

    assert Counter(asyncio.run(submit())) == {201: MANY}
    of_deployment = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]))
    names = {run.name for run in client.read_flow_runs(flow_run_filter=of_deployment)}
    assert names == {f"run {n}" for n in range(MANY)}
