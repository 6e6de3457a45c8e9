"""The configuration of a whole lifecycle: one block per step, as a preset writes it.

Imports no torch.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

from stages.contract import Block, operational, semantic
from stages.dpo import Config as DpoConfig
from stages.evaluation import Config as EvaluationConfig
from stages.ppo import Config as PpoConfig
from stages.preference_pairs import Config as PreferencePairsConfig
from stages.rejection_sampling import Config as RejectionSamplingConfig
from stages.reward_model import Config as RewardModelConfig
from stages.sft import Config as SftConfig
from tasks.evidence import Gate


class Rounds(Block):
    """How iterative DPO iterates."""

    rounds: int = semantic(1, "Rounds of sampling pairs and training on them.", ge=1)
    reference: Literal["sft", "previous"] = semantic(
        "previous", "What each round stays near: the fixed SFT policy, or the last round's policy."
    )
    start: Literal["lifecycle", "champion"] = semantic(
        "lifecycle",
        "Where the flow `iterative-dpo` starts: this lifecycle's policy before DPO, "
        "or the champion if there is one.",
    )


class Retries(Block):
    """What happens after a transient fault."""

    limit: int = operational(3, "Further tries of a stage in one flow run.", ge=0)
    delay_seconds: tuple[float, ...] = operational(
        (10.0, 60.0, 300.0), "Wait before each further try."
    )


class LifecycleConfig(Block):
    """Everything that a preset can say."""

    name: str = operational(
        ..., "Of the experiment and the registered models, as in <name>.policy."
    )
    data_root: str = operational(
        ".", "Folder that relative paths start from; RATCHET_SHARED/data overrides it."
    )
    sft: SftConfig = semantic(..., "From the base model to the SFT policy.")
    feedback: PreferencePairsConfig | None = semantic(
        None,
        "Pairs for the reward model, sampled from the SFT policy and labelled by a judge; "
        "None: its own data.",
    )
    reward_model: RewardModelConfig = semantic(
        ..., "From the SFT policy and pairs to the reward model."
    )
    rejection_sampling: RejectionSamplingConfig = semantic(
        ..., "Best of n responses of the SFT policy."
    )
    rejection_sft: SftConfig = semantic(..., "SFT on those.")
    preference_pairs: PreferencePairsConfig = semantic(..., "Pairs of each DPO round.")
    dpo: DpoConfig = semantic(..., "Training of each DPO round.")
    iterative_dpo: Rounds = semantic(Rounds(), "How DPO iterates.")
    ppo: PpoConfig = semantic(..., "PPO from the last round's policy.")
    evaluation: EvaluationConfig = semantic(
        ..., "On held-out prompts, against the SFT policy and the champion."
    )
    promotion: Gate = operational(Gate(), "What the candidate must show.")
    retries: Retries = operational(Retries(), "What happens after a transient fault.")


def partial(model: type[BaseModel]) -> type[BaseModel]:
    """Build the model of a partial config: every field of `model`, on all levels, may be left out.

    Unknown keys stay errors, so a form or an API call cannot set what does not exist.
    """
    fields: dict[str, Any] = {
        name: (_partial_type(info.annotation) | None, None)
        for name, info in model.model_fields.items()
    }
    config = ConfigDict(extra="forbid", protected_namespaces=())
    return create_model(
        f"{model.__module__.split('.')[-1]}_{model.__name__}", __config__=config, **fields
    )


def _partial_type(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return partial(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _partial_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        members = [_partial_type(a) for a in get_args(annotation)]
        return Union[tuple(members)]  # noqa: UP007 - built from a list
    return annotation


if TYPE_CHECKING:
    Overrides: TypeAlias = BaseModel | Mapping[str, Any]
else:
    Overrides = partial(LifecycleConfig)
"""What a run may change of its preset; Prefect renders it as a form."""
