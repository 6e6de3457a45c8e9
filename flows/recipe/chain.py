"""The steps that a preset has, one after another, each with what the steps before it made.

A step takes the newest policy, reward model and dataset that fit (`DEFAULTS`); `inputs` of the
preset names others. Walking a recipe without doing a step (`flows.recipe.outline`) finds everything
that is wrong with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from flows.config.given_models import RegisteredModelConfig
from flows.recipe.outline import StepRunner
from flows.recipe.step_inputs import SOURCES, require_inputs, rows_wanted
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.stage_record import ArtifactKind
from tasks.refs import StageRef
from training_core.errors import ConfigError

Chooser = Callable[[Sequence[StageRef]], StageRef]


def _first(refs: Sequence[StageRef]) -> StageRef:
    return refs[0]


def _newest(refs: Sequence[StageRef]) -> StageRef:
    return refs[-1]


DEFAULTS: Mapping[str, Chooser] = {
    "policy": _newest,
    "reference": _newest,
    "baseline": _first,
    "reward_model": _newest,
    "dataset": _newest,
}
"""Role -> which of the outputs of its kind a step takes; other roles have no default."""


class Chain:
    """Does the steps of a preset in the order of the calls.

    Args:
        recipe: does them, or only notes them.
    """

    def __init__(self, recipe: StepRunner) -> None:
        self._recipe, self._config = recipe, recipe.config
        self._made: dict[str, StageRef] = {}
        self._given: dict[str, StageRef] = {}
        self._rows: dict[str, str | None] = {}
        self._taken: set[str] = set()

    def do(self, block: str) -> StageRef | None:
        """Do the step of a block, or take the model given in its place; nothing without both."""
        if block in self._config.given:
            self._made[block] = self._take(block)
            return self._made[block]
        config = self._config.step_config(block)
        return None if config is None else self.run(block, config)

    def do_own_steps(self) -> None:
        """Do the steps with names of a person's own."""
        for name in self._config.steps:
            self.do(name)

    def run(
        self,
        step: str,
        config: StageConfig,
        chosen: Mapping[str, StageRef] | None = None,
        *,
        block: str = "",
    ) -> StageRef:
        """Do a step.

        Args:
            step: its name.
            config: what to do.
            chosen: inputs other than the default.
            block: of several rounds, whose `inputs` hold for each of its steps.

        Raises:
            ConfigError: for an input that is missing, unknown or of another kind.
        """
        named = self._config.inputs.get(block, {}) | self._config.inputs.get(step, {})
        inputs = self._defaults(config) | dict(chosen or {})
        inputs |= {role: self._named(step, role, name) for role, name in named.items()}
        given = {role: ref for role, ref in inputs.items() if ref is not None}
        require_inputs(block or step, config, given, self._untaken(config))
        self._taken |= {ref.step for ref in given.values()}
        made = self._recipe.run(step, config, **given)
        self._made[step], self._rows[step] = made, stage_of(config).rows
        return made

    def of_kind(self, kind: ArtifactKind) -> list[StageRef]:
        """Return what the steps so far have made, of one kind."""
        return [ref for ref in self._made.values() if ref.kind == kind]

    def require(self, flow: str, *blocks: str) -> None:
        """Check that the preset has blocks without which a flow makes no sense.

        Raises:
            ConfigError: naming those that are missing.
        """
        missing = [name for name in blocks if self._config.step_config(name) is None]
        if missing:
            raise ConfigError(
                f"the flow {flow} needs the block {' and '.join(missing)}, and the preset "
                f"{self._config.name} has none; add it, or use the flow full-rlhf"
            )

    def evaluate_and_promote(self, *, with_others: bool = False) -> None:
        """Judge the newest policy against the first, if the preset says how.

        Args:
            with_others: all other policies are evaluated beside them, for the report.

        Raises:
            ConfigError: if there is no other policy to compare with.
        """
        config = self._config.evaluation
        if config is None:
            return
        named = self._config.inputs.get("evaluation", {})
        inputs = self._defaults(config)
        inputs |= {role: self._named("evaluation", role, name) for role, name in named.items()}
        candidate, baseline = inputs.get("policy"), inputs.get("baseline")
        if candidate is None or baseline is None or candidate.step == baseline.step:
            raise ConfigError(
                "evaluation: expected two policies, the newest and an earlier one, found "
                f"{candidate.step if candidate else 'none'}; remove `evaluation`, or name a model "
                "in `given` and in `inputs.evaluation.baseline`"
            )
        judged = {candidate.step, baseline.step}
        others = [ref for ref in self.of_kind("policy") if ref.step not in judged]
        beside = {f"policy_{ref.step}": ref for ref in others} if with_others else {}
        evaluation = self.run("evaluation", config, beside)
        self._recipe.promote_if_better(candidate, evaluation, inputs.get("reward_model"))

    def _defaults(self, config: StageConfig) -> dict[str, StageRef | None]:
        """Return the inputs by role; without those that the config itself provides."""
        record = stage_of(config)
        found: dict[str, StageRef | None] = {}
        for role in (*record.required, *record.optional):
            kind = record.kind_of(role)
            refs = self.of_kind(kind) if kind else []
            if role == "dataset":
                refs = [ref for ref in refs if self._rows[ref.step] == rows_wanted(config)]
            is_own = getattr(config, SOURCES.get(role, ""), None) is not None
            if refs and role in DEFAULTS and not is_own:
                found[role] = DEFAULTS[role](refs)
        return found

    def _untaken(self, config: StageConfig) -> list[str]:
        """Return the steps that made rows for a stage like this one, and that no step took."""
        wanted = rows_wanted(config)
        return [
            ref.step
            for ref in self.of_kind("dataset")
            if ref.step not in self._taken and self._rows[ref.step] == wanted
        ]

    def _named(self, step: str, role: str, name: str | None) -> StageRef | None:
        if name is None:
            return None
        if name in self._made:
            return self._made[name]
        if name in self._config.given:
            return self._take(name)
        if self._config.step_config(name) is not None:
            raise ConfigError(
                f"inputs.{step}.{role}: step '{name}' does not come before '{step}', so its output "
                "is not there yet; name an earlier one, or change the order of `steps`"
            )
        known = [*self._made, *self._config.given]
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known) or 'none'}"
        raise ConfigError(
            f"inputs.{step}.{role}: there is no earlier step and no given model '{name}'; {hint}"
        )

    def _take(self, name: str) -> StageRef:
        """Return a given model; one that is not in the store yet is brought there by a step."""
        if name not in self._given:
            model = self._config.given[name]
            if isinstance(model.model, RegisteredModelConfig):
                ref = self._recipe.registered(name, model.model.uri, model.kind_as(name))
            else:
                ref = self._recipe.run(name, model.stage_config(model.model, name))
            self._given[name] = ref
        return self._given[name]
