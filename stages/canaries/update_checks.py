"""Canaries of reinforcement learning: the first round, before its update."""

from __future__ import annotations

from stages.canaries.probe import Probe
from stages.canaries.token_checks import CanaryFinding


def weight_sync(probe: Probe) -> CanaryFinding | None:
    """Count the failed syncs: `training_core.rollout.engine.sync` has raised if there was one."""
    return None if probe.first_update is None else CanaryFinding(0.0, 0.0, "")


def sampler_gap(probe: Probe) -> CanaryFinding | None:
    """Return the mean gap of the log-probabilities of sampler and trainer, in nats."""
    first = probe.first_update
    if first is None or first.sampler_gap is None:
        return None
    return CanaryFinding(
        first.sampler_gap,
        first.sampler_limit,
        "expected that sampler and trainer give the sampled tokens one probability, found a mean "
        f"gap of {first.sampler_gap:.4f} nats, the limit is {first.sampler_limit}; see "
        "rollouts.logprob_gap_limit",
    )


def first_ratio(probe: Probe) -> CanaryFinding | None:
    """Measure the ratio of policy to old policy in the objective of the update: it must be 1."""
    first = probe.first_update
    if first is None or not len(first.log_ratios):
        return None
    gap = float(first.log_ratios.abs().mean())
    return CanaryFinding(
        gap,
        first.ratio_limit,
        "expected that the ratio of policy to old policy is 1 before the first update, found that "
        f"its logarithm is {gap:.4f} per token on average (limit {first.ratio_limit:.2g}); the "
        "temperature, the dropout or the rows of the two differ. Please report this bug",
    )


def first_kl(probe: Probe) -> CanaryFinding | None:
    """Compare the old log-probabilities with those of a reference that is the same model."""
    first = probe.first_update
    if first is None or first.ref_logprobs is None or not len(first.ref_logprobs):
        return None
    gap = float((first.old_logprobs.double() - first.ref_logprobs.double()).abs().mean())
    return CanaryFinding(
        gap,
        first.ratio_limit,
        "policy and reference are one model, so their KL must be 0 before the first update, found "
        f"log-probabilities that differ by {gap:.4f} nats per token on average (limit "
        f"{first.ratio_limit:.2g}); the reference was loaded with other options, e.g. another "
        "dtype of frozen_models, or is not the one that `inputs` names",
    )
