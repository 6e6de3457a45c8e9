"""What all stages that train on a dataset have in common, and rules about several of their blocks.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import ClassVar, Self

from pydantic import model_validator

from stages.configs.block import StageConfig, operational, semantic
from stages.configs.canary_record import SKIP_CANARIES, CanaryName
from stages.configs.contract_rules import ALLOW_DIFFERENCES, ContractField
from stages.configs.data_config import DataConfig
from stages.configs.model_config import ModelConfig
from stages.configs.training_config import DeepSpeedEngineConfig, TrainingConfig


class TrainedStageConfig(StageConfig):
    """The fields of all stages that train a model on a dataset.

    The rules here would otherwise be checked by the running stage, hours after `ratchet plan`.
    """

    takes_workers = True
    heldout_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that the stage measures on held-out rows, e.g. for `best_metric`."""

    eval_data: DataConfig | None = semantic(None, "Held-out rows for the `heldout_…` metrics.")
    allow_differences: tuple[ContractField, ...] = operational((), ALLOW_DIFFERENCES)
    skip_canaries: tuple[CanaryName, ...] = operational((), SKIP_CANARIES)
    model: ModelConfig = semantic(ModelConfig(), "Options for loading the model.")
    training: TrainingConfig = semantic(TrainingConfig(), "How the model is trained.")

    @model_validator(mode="after")
    def _measures_what_it_compares(self) -> Self:
        """Refuse an evaluation without held-out rows, and a metric that is not measured."""
        training, best = self.training, self.training.best_metric
        fraction = getattr(self, "heldout_fraction", None)
        if (training.eval_every_steps or best) and not (self.eval_data or fraction):
            remedy = "set eval_data" if fraction is None else "set eval_data or heldout_fraction"
            raise ValueError(
                "training.eval_every_steps and training.best_metric need held-out rows, and there "
                f"are none; {remedy}, or remove the two"
            )
        if best and best.metric not in self.heldout_metrics:
            near = get_close_matches(best.metric, self.heldout_metrics, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ValueError(
                f"training.best_metric.metric: no metric '{best.metric}' is measured; {hint}"
                f"there are: {', '.join(self.heldout_metrics)}"
            )
        return self

    @model_validator(mode="after")
    def _divides_the_work(self) -> Self:
        """Refuse workers that cannot share a model, or would have no example of a batch."""
        engine, workers = self.training.engine, self.resources.num_workers
        parts = engine.tensor_parallel_size if isinstance(engine, DeepSpeedEngineConfig) else 1
        if workers % parts:
            raise ValueError(
                "resources.num_workers must be a multiple of training.engine.tensor_parallel_size "
                f"{parts}, found {workers}; change one of them"
            )
        if self.training.batch_size < workers // parts:
            raise ValueError(
                f"training.batch_size {self.training.batch_size} gives {workers // parts} workers "
                "less than one example each; raise it, or lower resources.num_workers"
            )
        return self

    @model_validator(mode="after")
    def _has_the_gpu_it_asks_for(self) -> Self:
        """Refuse FlashAttention on workers that get no GPU from Ray."""
        if self.model.attention == "flash_attention_2" and not self.resources.num_gpus:
            raise ValueError(
                "model.attention=flash_attention_2 needs a GPU, and resources.num_gpus is 0; "
                "set resources.num_gpus, or use attention=sdpa"
            )
        return self


def asks_for_parts(config: StageConfig) -> bool:
    """Tell whether a config names parts of its model, which only the model's own config has."""
    if not isinstance(config, TrainedStageConfig):
        return False
    return bool(config.model.frozen) or config.model.lora is not None
