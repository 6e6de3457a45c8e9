"""A given reward model: one that was trained elsewhere scores the responses of a lifecycle."""

from __future__ import annotations

from stages.configs.given_reward_model_config import GivenRewardModelConfig
from stages.contract import Context, Inputs, Result
from stages.training.base_model import location_of
from stages.training.trained_model import save_model
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.parts import scalar_head


def run(config: GivenRewardModelConfig, inputs: Inputs, context: Context) -> Result:
    """Write the reward model, in the dtype that it has, with its own tokenizer.

    Metric: `parameters`.

    Raises:
        DataError: if there is no such model, or one without a trained head.
    """
    del inputs
    directory, revision = location_of(config.model)
    tokenizer = hub.load_tokenizer(directory, revision)
    dtype = hub.recorded_dtype(directory, revision)
    model = hub.load_scalar_model(directory, revision=revision, dtype=dtype)
    if not bool(scalar_head(model).weight.any()):
        raise DataError(
            f"{directory} has no trained head, so each score would be 0; expected a sequence "
            "classifier with one label, e.g. one that the stage `reward_model` made"
        )
    save_model(model, tokenizer, context)
    return Result({"parameters": float(sum(each.numel() for each in model.parameters()))})
