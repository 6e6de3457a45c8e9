"""What the budgets of a preset leave for a step of a flow run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flows.config.budget_config import BudgetConfig, LimitsConfig
from stages.configs.block import StageConfig
from stages.configs.placement_config import reserved_gpus
from stages.runtime.store import Store
from tasks.budget import HOUR, Allowance, hours_of
from tasks.refs import StageRef


def allowances_for(
    step: str,
    config: StageConfig,
    budget: BudgetConfig,
    *,
    store: Store,
    before: Iterable[StageRef],
    since: float,
) -> tuple[Allowance, ...]:
    """Return what is left for a step, one entry per limit.

    Args:
        step: its name.
        config: what it does.
        budget: of the preset.
        store: has the attempts at the steps.
        before: finished steps of the flow run.
        since: Unix time at which the flow run began; what was done earlier costs it nothing.
    """
    gpus = reserved_gpus(config)
    found: list[Allowance] = []
    if budget.hours is not None or budget.gpu_hours is not None:
        spent = [_taken(store, ref, since) for ref in before]
        hours, gpu_hours = (sum(part) for part in zip(*spent, strict=True)) if spent else (0, 0)
        found += _allowances("budget", budget, gpus, (hours, gpu_hours))
    if step in budget.steps:
        found += _allowances(f"budget.steps.{step}", budget.steps[step], gpus, (0.0, 0.0))
    return tuple(found)


def _allowances(
    key: str, limits: LimitsConfig, gpus: float, taken: tuple[float, float]
) -> Iterator[Allowance]:
    if limits.hours is not None:
        yield Allowance(f"{key}.hours", limits.hours, taken[0], "hours", 1)
    if limits.gpu_hours is not None:
        yield Allowance(f"{key}.gpu_hours", limits.gpu_hours, taken[1], "GPU-hours", gpus)


def _taken(store: Store, ref: StageRef, since: float) -> tuple[float, float]:
    """Return the hours of a finished step in this flow run, and its GPU-hours."""
    hours = hours_of(store.attempts(ref.stage, ref.key), since)
    manifest = store.find(ref.stage, ref.key)
    cost = manifest.cost if manifest else {}
    gpus = cost.get("gpu_seconds", 0.0) / max(cost.get("seconds", 0.0), 1 / HOUR)
    return hours, hours * gpus
