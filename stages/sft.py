"""Supervised fine-tuning: imitate responses, from a base model or from a policy of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from stages.contract import Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.models import BaseModelSource, ScratchModel
from stages.settings.training import Training
from stages.sources import either
from training_core.data.templates import chat_template
from training_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stages.datasets import Demonstration


class Config(StageConfig):
    """What a person writes about SFT."""

    base: BaseModelSource | None = semantic(
        None, "Where to start; None starts from the input `policy`."
    )
    data: Data | None = semantic(None, "Demonstrations; None takes the input `dataset`.")
    eval_data: Data | None = semantic(None, "Held-out demonstrations for `heldout_loss`.")
    chat_template: str | None = semantic(
        None, "`plain`, `roles`, `llama3` or a Jinja template; None keeps the tokenizer's own."
    )
    pad_token: str | None = semantic(None, "Token for padding; None keeps the tokenizer's own.")
    training: Training = semantic(Training(), "How the model is fitted.")

    @field_validator("chat_template")
    @classmethod
    def _is_known_or_jinja(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                chat_template(value)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return value


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train on the responses alone; the artifact is the policy.

    Metrics: `examples`, and with `eval_data` `heldout_loss_before` and `heldout_loss`, in nats per
    trained token.
    """
    from stages.batches import example_batches
    from stages.datasets import demonstrations
    from stages.encoding import encode_demonstrations
    from stages.offline import best_device, fit
    from training_core.data import chat
    from training_core.models import hub
    from training_core.objectives.supervised import supervised

    rows = demonstrations(either("sft.data", config.data, "dataset", inputs))
    model, tokenizer = _start(config, inputs, rows)
    model.to(best_device())
    limit, pad_id = config.training.max_tokens, chat.pad_id(tokenizer)
    examples = encode_demonstrations(tokenizer, rows, max_tokens=limit)
    heldout_rows = demonstrations(config.eval_data) if config.eval_data else []
    heldout = encode_demonstrations(tokenizer, heldout_rows, max_tokens=limit)

    before = _heldout_loss(model, heldout, config.training, pad_id)
    batch_of = example_batches(
        examples, config.training, seed=config.seed, pad_id=pad_id, device=model.device
    )
    fit(
        model,
        supervised,
        batch_of,
        num_examples=len(examples),
        training=config.training,
        context=context,
    )
    after = _heldout_loss(model, heldout, config.training, pad_id)

    hub.save(model, tokenizer, context.artifact_dir)
    metrics = {"examples": float(len(examples))}
    if heldout:
        metrics |= {"heldout_loss_before": before, "heldout_loss": after}
    return Result("policy", metrics)


def _start(config: Config, inputs: Inputs, rows: Sequence[Demonstration]) -> tuple[Any, Any]:
    from training_core.data.chat import require_special_tokens
    from training_core.models import hub, scratch

    base = either("sft.base", config.base, "policy", inputs)
    template = chat_template(config.chat_template) if config.chat_template else None
    if isinstance(base, ScratchModel):
        texts = (" ".join((*(m["content"] for m in row.prompt), row.response)) for row in rows)
        tokenizer = scratch.make_tokenizer(texts, template or chat_template("roles"))
        sizes = base.model_dump(exclude={"name"})
        architecture = scratch.Architecture(**sizes, max_positions=config.training.max_tokens)
        return scratch.make_policy(architecture, tokenizer, seed=config.seed), tokenizer
    directory, revision = _location(base)
    tokenizer = hub.load_tokenizer(directory, revision)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.pad_token = config.pad_token or tokenizer.pad_token
    require_special_tokens(tokenizer)
    model = hub.load_policy(directory, revision=revision)
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _location(base: Any) -> tuple[str, str | None]:
    if hasattr(base, "repo"):
        return base.repo, base.revision
    return str(getattr(base, "path", base)), None


def _heldout_loss(model: Any, examples: Sequence[Any], training: Training, pad_id: int) -> float:
    from stages.measure import mean_loss

    return mean_loss(model, examples, budget_tokens=training.micro_batch_tokens, pad_id=pad_id)
