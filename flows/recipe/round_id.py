"""Rounds of a schedule: each samples other responses than the one before."""

from __future__ import annotations

import hashlib

from prefect.runtime import flow_run

from flows.config.lifecycle_config import LifecycleConfig
from stages.configs.block import SEED_LIMIT

SCHEDULED = "auto-scheduled"
"""Tag with which Prefect marks the runs that a schedule creates."""


def scheduled_date() -> str | None:
    """Return the date of this run if a schedule created it, e.g. `2026-11-21`; else None."""
    if SCHEDULED not in flow_run.tags:
        return None
    return flow_run.scheduled_start_time.date().isoformat()


def with_round(config: LifecycleConfig, round_id: str | None) -> LifecycleConfig:
    """Return the config with a seed for sampling pairs that depends on the round.

    The seed is part of the stage keys, so each round has its own pairs and policies. A Retry of a
    run keeps them, because the changed config is stored with the run.

    Args:
        config: the lifecycle.
        round_id: text that names the round; None changes nothing.
    """
    pairs = config.preference_pairs
    if round_id is None or pairs is None:
        return config
    digest = hashlib.sha256(f"{pairs.seed} {round_id}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big") % SEED_LIMIT
    return config.model_copy(update={"preference_pairs": pairs.model_copy(update={"seed": seed})})
