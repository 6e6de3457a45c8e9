"""Direct preference optimisation of a policy against a reference, on pairs."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from stages.contract import Block, Context, Inputs, Result, StageConfig, semantic
from stages.settings.data import Data
from stages.settings.training import Training
from stages.sources import either
from training_core.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Dpo(Block):
    """Sigmoid loss of Rafailov et al. 2023; label smoothing makes it conservative."""

    name: Literal["dpo"] = semantic("dpo", "Which loss this is.")
    beta: float = semantic(0.1, "Strength of the pull to the reference (paper's default).", gt=0)
    label_smoothing: float = semantic(0.0, "Assumed share of flipped labels.", ge=0, lt=0.5)


class Ipo(Block):
    """Squared loss of Azar et al. 2023."""

    name: Literal["ipo"] = semantic("ipo", "Which loss this is.")
    beta: float = semantic(0.1, "The paper's tau.", gt=0)


class Config(StageConfig):
    """What a person writes about DPO."""

    loss: Annotated[Dpo | Ipo, Field(discriminator="name")] = semantic(
        Dpo(), "Loss on the pair of log-ratios."
    )
    data: Data | None = semantic(None, "Preference pairs; None takes the input `dataset`.")
    training: Training = semantic(Training(), "How the policy is fitted.")


def run(config: Config, inputs: Inputs, context: Context) -> Result:
    """Train the policy; the reference's log-probabilities are computed once, before the first step.

    Metrics: `train_pairs`, `accuracy` (share of pairs whose chosen log-ratio is larger).
    """
    from stages.batches import pair_batches, reference_logprobs
    from stages.datasets import preferences
    from stages.encoding import encode_pairs
    from stages.offline import best_device, fit
    from training_core.algorithms.preference_losses import PREFERENCE_LOSSES
    from training_core.data import chat
    from training_core.models import hub
    from training_core.objectives.preference import preference

    source = either("dpo.data", config.data, "dataset", inputs)
    tokenizer = hub.load_tokenizer(inputs["policy"])
    pad_id, budget = chat.pad_id(tokenizer), config.training.micro_batch_tokens
    pairs = encode_pairs(tokenizer, preferences(source), max_tokens=config.training.max_tokens)

    reference = hub.freeze(hub.load_policy(inputs["reference"])).to(best_device())
    reference_sums = reference_logprobs(reference, pairs, budget_tokens=budget, pad_id=pad_id)
    del reference
    hyperparameters = config.loss.model_dump(exclude={"name"})
    loss = partial(PREFERENCE_LOSSES[config.loss.name], **hyperparameters)
    policy = hub.load_policy(inputs["policy"]).to(best_device())
    if inputs["policy"] == inputs["reference"] and not context.earlier_attempts:
        _require_no_preference_yet(policy, pairs, reference_sums, budget, pad_id)
    batch_of = pair_batches(
        pairs,
        config.training,
        seed=config.seed,
        pad_id=pad_id,
        device=policy.device,
        ref_logprobs=reference_sums,
    )
    objective = preference(loss, beta=config.loss.beta)
    fit(
        policy,
        objective,
        batch_of,
        num_examples=len(pairs),
        training=config.training,
        context=context,
    )
    after = reference_logprobs(policy, pairs, budget_tokens=budget, pad_id=pad_id)

    hub.save(policy, tokenizer, context.artifact_dir)
    metrics = {
        "train_pairs": float(len(pairs)),
        "accuracy": _accuracy(after - reference_sums),
    }
    return Result("policy", metrics)


def _accuracy(logratios: Any) -> float:
    return float((logratios[:, 0] > logratios[:, 1]).double().mean())


def _require_no_preference_yet(
    policy: Any, pairs: Sequence[Any], reference_sums: Any, budget: int, pad_id: int
) -> None:
    """Where policy and reference are one model, the DPO loss must start at ln 2."""
    import torch

    from stages.batches import reference_logprobs
    from training_core.algorithms.preference_losses import dpo

    some = list(pairs[:32])
    sums = (
        reference_logprobs(policy, some, budget_tokens=budget, pad_id=pad_id)
        - reference_sums[: len(some)]
    )
    loss = float(dpo(sums[:, 0], sums[:, 1], beta=1.0, label_smoothing=0.0).mean())
    if not math.isclose(loss, math.log(2), abs_tol=1e-3):
        raise MismatchError(
            "policy and reference are one model, so the DPO loss must start at ln 2 = 0.6931, "
            f"found {loss:.4f} (torch {torch.__version__}): "
            "the reference's log-probabilities are wrong"
        )
