"""Run the canaries of a stage once, and keep their results for the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stages.canaries.canary_results import read_results, write_results
from stages.canaries.probe import Probe
from stages.canaries.table import CANARIES
from stages.configs.canary_record import CanaryName, CanaryRecord
from stages.configs.stage_record import StageRecord
from stages.configs.trained_stage import TrainedStageConfig
from stages.contract import Context
from stages.training.fit import eval_mode
from stages.training.trained_model import TrainedModel
from training_core.distributed import any_rank
from training_core.errors import CanaryError

log = logging.getLogger(__name__)


def run_canaries(
    stage: StageRecord,
    config: TrainedStageConfig,
    context: Context,
    model: TrainedModel,
    probe: Callable[[], Probe],
) -> None:
    """Check a model before its first step; an attempt that resumes keeps the earlier results.

    Changes nothing: no gradients, dropout off, random state restored. Only the first rank computes,
    unless the model needs all; every rank must call this.

    Args:
        stage: has the names of its canaries.
        config: has the names of those that are left out.
        context: its attempt keeps the results.
        model: before the first step.
        probe: builds what they look at.

    Raises:
        CanaryError: for the first that fails.
    """
    if any_rank(keeps_earlier_results(context), context.dist_info):
        return
    with model.at_work(), eval_mode(model.model):
        if context.dist_info.is_first or model.computes_together:
            check(stage.canaries, context, probe(), skip=config.skip_canaries)


def keeps_earlier_results(context: Context) -> bool:
    """Copy the results of an earlier attempt into this one; return whether there were any."""
    known = read_results(context.attempt, *context.earlier_attempts)
    if known is not None and context.dist_info.is_first:
        write_results(context.attempt, known)
    return known is not None


def check(
    names: Sequence[CanaryName],
    context: Context,
    probe: Probe,
    *,
    skip: Sequence[CanaryName] = (),
) -> None:
    """Run canaries on a probe and write their results; see `run_canaries`."""
    found: list[CanaryRecord] = []
    for name in names:
        canary = CANARIES[name]
        finding = None if name in skip else canary.check(probe)
        if finding is None:
            continue
        if not finding.passes:
            raise CanaryError(f"the canary {name} failed before the first step: {finding.problem}")
        log.info("canary %s: %.3g, limit %.3g", name, finding.found, finding.limit)
        found.append(
            CanaryRecord(name=name, shows=canary.shows, found=finding.found, limit=finding.limit)
        )
    if skip:
        log.warning("canaries that the config leaves out: %s", ", ".join(skip))
    if context.dist_info.is_first:
        write_results(context.attempt, found)
