"""Addresses of MLflow's pages.

MLflow opens in its mode for agents, which has no page of registered models and shows experiments
without their runs. An address may choose the other mode.
"""

from __future__ import annotations

from urllib.parse import quote

MODE = "?workflowType=machine_learning"


def models_page(server: str) -> str:
    """Return the page with all registered models; `server` is its address without a login."""
    return f"{server}/#/models{MODE}"


def version_page(server: str, name: str, version: int) -> str:
    """Return the page of a model version."""
    return f"{server}/#/models/{quote(name)}/versions/{version}{MODE}"


def run_page(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the page of a run, or that of one of its artifacts."""
    below = f"/artifacts/{quote(artifact)}" if artifact else ""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}{below}{MODE}"
