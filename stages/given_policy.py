"""A given policy: a model that was trained elsewhere becomes the first step of a lifecycle."""

from __future__ import annotations

from stages.configs.given_policy_config import GivenPolicyConfig
from stages.contract import Context, Inputs, Result
from stages.training.base_model import adapted_tokenizer, location_of
from stages.training.trained_model import save_model
from training_core.models import hub
from training_core.models.fitting_parts import require_fit


def run(config: GivenPolicyConfig, inputs: Inputs, context: Context) -> Result:
    """Write the policy, in the dtype that it has, with the tokenizer that all later steps use.

    Metric: `parameters`.

    Raises:
        DataError: if there is no such model, or it does not fit its tokenizer.
        ConfigError: if the tokenizer cannot end or pad a response, or has no template that works.
    """
    del inputs
    directory, revision = location_of(config.model)
    tokenizer = adapted_tokenizer(
        config.model, template=config.chat_template, pad_token=config.pad_token
    )
    dtype = hub.recorded_dtype(directory, revision)
    model = hub.load_policy(directory, revision=revision, dtype=dtype)
    require_fit(model, tokenizer, max_tokens=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    save_model(model, tokenizer, context)
    return Result({"parameters": float(sum(each.numel() for each in model.parameters()))})
