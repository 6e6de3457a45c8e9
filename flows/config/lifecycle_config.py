"""The configuration of a whole lifecycle: one block per step, as a preset writes it.

Imports no torch.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, create_model, model_validator

from stages.catalog import STAGES
from stages.configs.block import Block, operational, semantic
from stages.configs.dpo_config import DpoConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from tasks.gate import GateConfig


class IterativeDpoConfig(Block):
    """The rounds of iterative DPO."""

    rounds: int = semantic(1, "Rounds of sampling pairs and training on them.", ge=1)
    reference: Literal["sft", "previous"] = semantic(
        "previous", "What each round stays near: the fixed SFT policy, or the last round's policy."
    )
    keeps_history: bool = semantic(
        False, "Train each round on the pairs of the earlier rounds of this run, too."
    )
    start: Literal["lifecycle", "champion"] = semantic(
        "lifecycle",
        "Where the flow `iterative-dpo` starts: this lifecycle's policy before DPO, "
        "or the champion if there is one.",
    )


class RaftConfig(Block):
    """How rejection sampling and SFT iterate (RAFT, Dong et al. 2023)."""

    rounds: int = semantic(3, "Rounds of sampling, selecting and SFT.", ge=1)


class RetriesConfig(Block):
    """What happens after a transient fault."""

    limit: int = operational(3, "Further tries of a stage in one flow run.", ge=0)
    delay_seconds: tuple[float, ...] = operational(
        (10.0, 60.0, 300.0), "Wait before each further try."
    )


class RecipeConfig(Block):
    """The blocks of the recipes, i.e. of the flows with several stages."""

    name: str = operational(..., "Of the experiment and the registered models, e.g. <name>.policy.")
    data_root: str = operational(
        ".", "Folder that relative paths start from; $RATCHET_SHARED/data replaces a preset's."
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
    raft: RaftConfig = semantic(RaftConfig(), "How the flow `raft` iterates.")
    iterative_dpo: IterativeDpoConfig = semantic(IterativeDpoConfig(), "How DPO iterates.")
    ppo: PpoConfig = semantic(..., "PPO from the last round's policy.")
    evaluation: EvaluationConfig = semantic(
        ..., "On held-out prompts, against the SFT policy and the champion."
    )
    promotion: GateConfig = operational(GateConfig(), "What the candidate must show.")
    retries: RetriesConfig = operational(RetriesConfig(), "What happens after a transient fault.")

    @model_validator(mode="after")
    def _has_one_source_for_each_step(self) -> Self:
        """Refuse data that the graph gives too, or that nobody gives, before anything starts."""
        has_feedback = self.feedback is not None
        rules = (  # key, its value, whether it is needed, what to do
            ("sft.base", self.sft.base, True, "nothing comes before SFT; set it"),
            ("sft.data", self.sft.data, True, "nothing comes before SFT; set it"),
            (
                "reward_model.data",
                self.reward_model.data,
                not has_feedback,
                "its pairs come from `feedback`; drop one of the two"
                if has_feedback
                else "there is no `feedback` to give pairs; set one of the two",
            ),
            ("rejection_sft.base", self.rejection_sft.base, False, "it starts from `sft`; drop it"),
            (
                "rejection_sft.data",
                self.rejection_sft.data,
                False,
                "its data comes from `rejection_sampling`; drop it",
            ),
            ("dpo.data", self.dpo.data, False, "its pairs come from `preference_pairs`; drop it"),
        )
        problems = [
            f"{key} is {'not set' if is_needed else 'set'}, but {what}"
            for key, value, is_needed, what in rules
            if (value is not None) != is_needed
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _stages_alone() -> dict[str, Any]:
    """Return one optional block for each stage that no recipe uses."""
    fields: dict[str, Any] = {}
    for name, record in STAGES.items():
        if name not in RecipeConfig.model_fields:
            block = semantic(None, f"Config of the stage `{name}`, for the flow `stage`.")
            fields[name] = (record.config | None, block)
    return fields


if TYPE_CHECKING:
    LifecycleConfig: TypeAlias = RecipeConfig
else:
    LifecycleConfig = create_model(
        "LifecycleConfig",
        __base__=RecipeConfig,
        __module__=__name__,
        __doc__="Configuration of a lifecycle: all blocks that a preset may have.",
        **_stages_alone(),
    )


@cache
def partial(model: type[BaseModel]) -> type[BaseModel]:
    """Build the model of a partial config: every field of `model`, on all levels, may be left out.

    One per model, wherever it occurs: doubles make the form's JSON schema many times as slow.

    Unknown keys pass, so that they reach `load_config`, which names the nearest known one. Prefect
    would refuse them with no more than "Additional properties are not allowed".
    """
    fields: dict[str, Any] = {
        name: (_partial_type(info.annotation) | None, None)
        for name, info in model.model_fields.items()
    }
    config = ConfigDict(extra="allow", protected_namespaces=())
    return create_model(
        f"{model.__module__.split('.')[-1]}_{model.__name__}", __config__=config, **fields
    )


def _partial_type(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return partial(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _partial_type(get_args(annotation)[0])
    if origin is tuple:
        members = [_partial_type(a) if a is not ... else a for a in get_args(annotation)]
        return tuple.__class_getitem__(tuple(members))
    if origin in (Union, types.UnionType):
        members = [_partial_type(a) for a in get_args(annotation)]
        return Union[tuple(members)]  # noqa: UP007 - built from a list
    return annotation


if TYPE_CHECKING:
    Overrides: TypeAlias = BaseModel | Mapping[str, object]
else:
    Overrides = partial(LifecycleConfig)
"""What a run may change of its preset; Prefect renders it as a form."""
