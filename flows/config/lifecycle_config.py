"""The configuration of a whole lifecycle: one block per step, as a preset writes it.

Imports no torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from flows.config.budget_config import BudgetConfig
from flows.config.form import Form
from flows.config.given_models import GivenModelConfig, RegisteredModelConfig
from flows.config.leak_guard_config import LeakGuardConfig
from flows.config.own_steps import OwnStepConfig
from stages.configs.block import Block, StageConfig, operational, semantic
from stages.configs.distillation_config import DistillationConfig
from stages.configs.dpo_config import DpoConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.kto_config import KtoConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from stages.configs.tree import blocks_at
from tasks.gate import GateConfig
from training_core.names import checked_name

CheckedName = Annotated[str, AfterValidator(checked_name)]


class IterativeDpoConfig(Block):
    """The rounds of iterative DPO."""

    rounds: int = semantic(1, "Rounds of sampling pairs and training on them.", ge=1, le=1000)
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

    rounds: int = semantic(3, "Rounds of sampling, selecting and SFT.", ge=1, le=1000)


class RetriesConfig(Block):
    """What happens after a transient fault."""

    limit: int = operational(3, "Further tries of a stage in one flow run.", ge=0)
    delay_seconds: tuple[Annotated[float, Field(ge=0)], ...] = operational(
        (10.0, 60.0, 300.0), "Wait before each further try."
    )
    outage_seconds: float = operational(
        900.0, "How long a step waits for a Ray cluster that does not answer; no try.", ge=0
    )


class LifecycleConfig(Block):
    """Configuration of a lifecycle: all blocks that a preset may have, all but `name` optional."""

    name: CheckedName = operational(
        ...,
        "Of the experiment and the registered models (`<name>.policy`): letters, digits, _ and -.",
    )
    data_root: str = operational(
        ".",
        "Folder that relative paths start from. It is itself relative to the folder of the preset; "
        "that of a preset below deployments/presets is relative to the repository, and "
        "$RATCHET_SHARED/data replaces it.",
    )
    given: dict[CheckedName, GivenModelConfig] = semantic(
        {},
        "Models that exist already, by the step whose place they take, or any name for `inputs`.",
    )
    sft: SftConfig | None = semantic(None, "From the base model to the SFT policy.")
    feedback: PreferencePairsConfig | None = semantic(
        None,
        "Pairs for the reward model, sampled from the SFT policy and labelled by a judge; "
        "None: its own data.",
    )
    reward_model: RewardModelConfig | None = semantic(
        None, "From the SFT policy and pairs to the reward model."
    )
    process_reward: ProcessRewardConfig | None = semantic(
        None, "From the SFT policy and labelled steps to the process reward model."
    )
    rejection_sampling: RejectionSamplingConfig | None = semantic(
        None, "Best of n responses of the SFT policy."
    )
    rejection_sft: SftConfig | None = semantic(
        None, "SFT on the responses that `rejection_sampling` selected."
    )
    preference_pairs: PreferencePairsConfig | None = semantic(None, "Pairs of each DPO round.")
    dpo: DpoConfig | None = semantic(
        None, "Training of each DPO round; without `preference_pairs`, DPO on its own `data`."
    )
    kto: KtoConfig | None = semantic(None, "KTO from the policy so far.")
    distillation: DistillationConfig | None = semantic(
        None,
        "Distillation into the policy so far; `inputs.distillation.teacher` names the teacher.",
    )
    raft: RaftConfig = semantic(RaftConfig(), "How the flow `raft` iterates.")
    iterative_dpo: IterativeDpoConfig = semantic(IterativeDpoConfig(), "How DPO iterates.")
    ppo: PpoConfig | None = semantic(None, "PPO from the policy so far.")
    steps: dict[CheckedName, OwnStepConfig] = semantic(
        {}, "Further steps after those above, in their order, by names of your own."
    )
    inputs: dict[CheckedName, dict[CheckedName, CheckedName | None]] = semantic(
        {},
        "Step -> role -> the step or given model whose output it takes, where that is not the "
        "default; null: none.",
    )
    evaluation: EvaluationConfig | None = semantic(
        None, "On held-out prompts, against the first policy and the champion."
    )
    promotion: GateConfig = operational(GateConfig(), "What the candidate must show.")
    budget: BudgetConfig = operational(BudgetConfig(), "What the steps may take at most.")
    leak_guard: LeakGuardConfig = operational(
        LeakGuardConfig(), "How much of the evaluation may be in training data."
    )
    retries: RetriesConfig = operational(RetriesConfig(), "What happens after a transient fault.")

    @field_validator("given", "steps", mode="before")
    @classmethod
    def _may_be_unset(cls, value: object) -> object:
        """Leave out what an override or a preset unsets, e.g. `steps: {maths: ~}`."""
        if not isinstance(value, dict):
            return value
        return {name: block for name, block in value.items() if block is not None}

    @model_validator(mode="after")
    def _names_each_step_once(self) -> Self:
        """Refuse a step of one's own, or a given model, with the name of another step."""
        for name in self.steps:
            if name in type(self).model_fields or name in self.given:
                raise ValueError(
                    f"steps.{name}: there is a block or a given model of this name; "
                    "choose another name"
                )
        for name in self.given:
            if getattr(self, name, None) is not None:
                raise ValueError(
                    f"given.{name} takes the place of the block `{name}`, and both are set; "
                    f"remove one (`{name}: ~` unsets the block of a base preset)"
                )
        return self

    def step_config(self, name: str) -> StageConfig | None:
        """Return the config of a block, or of a step of one's own; None if there is none."""
        if name in self.steps:
            return self.steps[name].stage
        found = getattr(self, name, None)
        return found if isinstance(found, StageConfig) else None

    def stages(self) -> dict[str, StageConfig]:
        """Return the configs of all steps by their place in the preset, e.g. `steps.maths.sft`."""
        return {
            place.removesuffix("."): block
            for place, block in blocks_at(self)
            if isinstance(block, StageConfig)
        }

    def start(self) -> SftConfig | None:
        """Return the SFT config with the model that the others descend from.

        For a given model it is a config that only loads it. None: it is in the registry.
        """
        given = sorted(self.given.items(), key=lambda item: item[0] != "sft")
        policies = [
            SftConfig(base=g.model, chat_template=g.chat_template, pad_token=g.pad_token)
            for name, g in given
            if g.kind_as(name) == "policy" and not isinstance(g.model, RegisteredModelConfig)
        ]
        trained = [s for s in self.stages().values() if isinstance(s, SftConfig) and s.base]
        in_order = [*policies, *trained] if "sft" in self.given else [*trained, *policies]
        return next(iter(in_order), None)


Overrides: TypeAlias = Annotated[dict[str, Any], Form(LifecycleConfig)]
"""What a run may change of its preset; Prefect renders it as a form."""
