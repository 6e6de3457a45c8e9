"""Supervised fine-tuning: imitate responses, from a base model or from a policy of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from stages.contract import Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.models import BaseModelSource, ModelOptions
from stages.settings.training import Training
from stages.sources import either
from training_core.data.templates import chat_template
from training_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from training_core.types import Example


class Config(StageConfig):
    """What a person writes about SFT."""

    base: BaseModelSource | None = semantic(
        None, "Where to start; None starts from the input `policy`."
    )
    model: ModelOptions = semantic(ModelOptions(), "What the model is loaded as.")
    data: Data | None = semantic(None, "What to imitate; None takes the input `dataset`.")
    eval_data: Data | None = semantic(None, "Held-out rows for `heldout_loss`.")
    rows: Literal["demonstrations", "texts"] = semantic(
        "demonstrations", "What the data holds; `texts` is continued pre-training."
    )
    train_on: Literal["every_turn", "last_turn", "all_tokens"] = semantic(
        "every_turn", "Which tokens of a demonstration are trained: of the assistant, or all."
    )
    reward_suffix: str | None = semantic(
        None, "Format with {reward} that follows each prompt (conditional SFT); None is plain SFT."
    )
    chat_template: str | None = semantic(
        None,
        'Name of a template, a Jinja template, or a plain format as "User: {}\\nAssistant: "; '
        "None keeps the tokenizer's own.",
    )
    pad_token: str | None = semantic(None, "Token for padding; None keeps the tokenizer's own.")
    training: Training = semantic(Training(), "How the model is fitted.")

    @field_validator("chat_template")
    @classmethod
    def _is_a_template(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                chat_template(value)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return value


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train on the trained tokens alone; the artifact is the policy.

    Metrics: `examples`, and with `eval_data` `heldout_loss_before` and `heldout_loss`, in nats per
    trained token.
    """
    from stages.base_model import base_model, base_tokenizer
    from stages.batches import Examples, micro_batches
    from stages.engines import best_device
    from stages.measure import mean_loss
    from stages.offline import fit, save_model
    from training_core.data import chat
    from training_core.models.causal_lm import packs_rows
    from training_core.objectives.balanced import balanced
    from training_core.objectives.supervised import supervised

    source = either("sft.data", config.data, "dataset", inputs)
    base = either("sft.base", config.base, "policy", inputs)
    tokenizer = base_tokenizer(config, base, source)
    model = base_model(config, base, tokenizer).to(best_device())
    pad_id = chat.pad_id(tokenizer)
    packs = packs_rows(model)
    train = Examples(_encode(config, tokenizer, source), pad_id, model.device, packs)
    heldout_rows = _encode(config, tokenizer, config.eval_data) if config.eval_data else []
    heldout = Examples(heldout_rows, pad_id, model.device, packs)

    def measure() -> Mapping[str, float]:
        budget = config.training.micro_batch_tokens
        return {"heldout_loss": mean_loss(model, heldout, budget_tokens=budget)}

    before = measure() if heldout_rows else {}
    fit(
        model,
        balanced(supervised, config.model.moe_aux_loss_coef),
        micro_batches(train, config.training, seed=config.seed, ranks=context.ranks),
        num_examples=len(train.examples),
        training=config.training,
        context=context,
        evaluate=measure if heldout_rows else None,
    )
    save_model(model, tokenizer, context)
    metrics = {"examples": float(len(train.examples))}
    if heldout_rows:
        metrics |= {"heldout_loss_before": before["heldout_loss"], **measure()}
    return Result("policy", metrics)


def _encode(config: Config, tokenizer: Any, source: Any) -> Sequence[Example]:
    from stages import datasets
    from stages.encoding import encode_demonstrations, encode_texts

    limit = config.training.max_tokens
    if config.rows == "texts":
        return encode_texts(tokenizer, datasets.texts(source), max_tokens=limit)
    return encode_demonstrations(
        tokenizer,
        datasets.demonstrations(source),
        max_tokens=limit,
        train_on=config.train_on,
        reward_suffix=config.reward_suffix,
    )
