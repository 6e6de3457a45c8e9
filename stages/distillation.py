"""Distillation: a student follows a teacher, on given responses and on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.contract import Block, Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.models import ModelOptions
from stages.settings.sampling import Rollouts
from stages.settings.training import Training
from stages.sources import either
from training_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from training_core.types import Batch


class ForwardKl(Block):
    """KL(teacher || student): the student covers what the teacher does."""

    name: Literal["forward_kl"] = semantic("forward_kl", "Which divergence this is.")


class ReverseKl(Block):
    """KL(student || teacher): the student seeks what the teacher likes best."""

    name: Literal["reverse_kl"] = semantic("reverse_kl", "Which divergence this is.")


class Jsd(Block):
    """Generalised Jensen-Shannon divergence of Agarwal et al. 2023 (GKD)."""

    name: Literal["jsd"] = semantic("jsd", "Which divergence this is.")
    beta: float = semantic(0.5, "Towards forward KL at 0, reverse KL at 1.", gt=0, lt=1)


class Config(StageConfig):
    """What a person writes about distillation."""

    divergence: Annotated[ForwardKl | ReverseKl | Jsd, Field(discriminator="name")] = semantic(
        ForwardKl(), "How far student and teacher are apart at a token."
    )
    data: Data | None = semantic(None, "Demonstrations; None takes the input `dataset`.")
    eval_data: Data | None = semantic(None, "Held-out demonstrations for `heldout_…` metrics.")
    temperature: float = semantic(1.0, "Softens both distributions.", gt=0)
    nll_coef: float = semantic(
        0.0, "Share of the data's own cross-entropy; OpenRLHF's kd has 0.6.", ge=0, le=1
    )
    on_policy_fraction: float = semantic(
        0.0, "Share of the steps on responses that the student samples (GKD's lambda).", ge=0, le=1
    )
    rollouts: Rollouts = semantic(Rollouts(), "How the student's responses are sampled.")
    model: ModelOptions = semantic(ModelOptions(), "What the model is loaded as.")
    training: Training = semantic(Training(), "How the student is fitted.")

    @model_validator(mode="after")
    def _imitates_data_alone(self) -> Config:
        if self.nll_coef and self.on_policy_fraction:
            raise ValueError(
                "nll_coef is the cross-entropy of the data, and on_policy_fraction trains on the "
                "student's own responses, which it would then imitate; set one of them to 0"
            )
        return self


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train the student, the input `policy`, to follow the input `teacher`.

    Metrics: `examples`, and with `eval_data` `heldout_divergence_before` and `heldout_divergence`
    in nats per token.
    """
    from stages.batches import Examples
    from stages.datasets import demonstrations
    from stages.encoding import encode_demonstrations
    from stages.engines import best_device
    from stages.offline import fit, save_model
    from stages.on_policy import mixed_batches
    from training_core.algorithms.distillation_losses import DIVERGENCES
    from training_core.data import chat
    from training_core.models import hub
    from training_core.models.causal_lm import packs_rows
    from training_core.objectives.balanced import balanced
    from training_core.objectives.distillation import distillation

    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id, limit = chat.pad_id(tokenizer), config.training.max_tokens
    rows = demonstrations(either("distillation.data", config.data, "dataset", inputs))
    examples = encode_demonstrations(tokenizer, rows, max_tokens=limit)
    heldout_rows = demonstrations(config.eval_data) if config.eval_data else []
    heldout = encode_demonstrations(tokenizer, heldout_rows, max_tokens=limit)

    options = config.model.load_options(seed=config.seed)
    student = hub.load_policy(inputs["policy"], options=options).to(best_device())
    plain = config.model.untrained().load_options(seed=config.seed)
    teacher = hub.freeze(hub.load_policy(inputs["teacher"], options=plain)).to(best_device())
    _require_one_vocabulary(tokenizer, hub.load_tokenizer(inputs["teacher"]))
    packs = packs_rows(student) and packs_rows(teacher)
    train, test = (Examples(some, pad_id, student.device, packs) for some in (examples, heldout))
    hyperparameters = config.divergence.model_dump(exclude={"name"})
    objective = distillation(
        teacher,
        DIVERGENCES[config.divergence.name],
        temperature=config.temperature,
        nll_coef=config.nll_coef,
        **hyperparameters,
    )

    def measure() -> Mapping[str, float]:
        return {"heldout_divergence": _mean_divergence(objective, student, test, config)}

    before = measure() if heldout else {}
    fit(
        student,
        balanced(objective, config.model.moe_aux_loss_coef),
        mixed_batches(
            student,
            tokenizer,
            train,
            fraction=config.on_policy_fraction,
            rollouts=config.rollouts,
            training=config.training,
            seed=config.seed,
            directory=inputs["policy"],
            ranks=context.ranks,
        ),
        num_examples=len(examples),
        training=config.training,
        context=context,
        evaluate=measure if heldout else None,
        batches_ask_model=config.on_policy_fraction > 0,
    )
    save_model(student, tokenizer, context)
    metrics = {"examples": float(len(examples))}
    if heldout:
        metrics |= {f"{name}_before": value for name, value in before.items()} | dict(measure())
    return Result("policy", metrics)


def _require_one_vocabulary(student: Any, teacher: Any) -> None:
    """Distributions over different tokens cannot be compared."""
    if student.get_vocab() != teacher.get_vocab():
        raise ConfigError(
            "student and teacher must have one vocabulary, found "
            f"{len(student)} and {len(teacher)} tokens that are not the same; "
            "choose a teacher of the student's family"
        )


def _mean_divergence(
    objective: Callable[[Any, Batch], Any], student: Any, examples: Any, config: Config
) -> float:
    import torch

    from stages.batches import cut

    with torch.no_grad():
        budget = config.training.micro_batch_tokens
        found = [
            objective(student, batch).metrics["divergence"]
            for _, batch in cut(examples, range(len(examples.lengths)), budget)
        ]
    count = sum(mean.count for mean in found)
    return sum(mean.total for mean in found) / count if count else float("nan")
