"""From the config of a stage to its estimate."""

from __future__ import annotations

from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.sampling_config import GroupSamplingConfig
from stages.configs.trained_stage import TrainedStageConfig
from stages.sizes.dataset_rows import rows_in
from stages.sizes.sampling_stages import evaluation, group_sampling, ppo
from stages.sizes.stage_size import StageSize
from stages.sizes.trained_stages import KINDS, trained_stage
from training_core.sizes.decoder import Decoder


def size_of(
    config: StageConfig, decoder: Decoder, *, given_rows: int | None = None, policies: int = 2
) -> StageSize | None:
    """Estimate memory, tokens and FLOPs of a stage.

    Args:
        config: of the stage.
        decoder: shapes of the lifecycle's model; all models of the stage are taken to have them.
        given_rows: rows of its input datasets, which earlier stages make; None: unknown.
        policies: policies that an evaluation compares.

    Returns:
        None for a stage without an estimate, e.g. one of a user.
    """
    if isinstance(config, PpoConfig):
        return ppo(config, decoder)
    if isinstance(config, EvaluationConfig):
        return evaluation(config, decoder, policies)
    if isinstance(config, GroupSamplingConfig):
        return group_sampling(config, decoder)
    kind = KINDS.get(stage_of(config).name)
    if kind is None or not isinstance(config, TrainedStageConfig):
        return None
    data = getattr(config, "data", None)
    rows = given_rows if data is None else rows_in(data)
    return trained_stage(config, kind, decoder, rows)
