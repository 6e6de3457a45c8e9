"""The methods for which `ratchet new` writes a preset, and which of them fits a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from stages.configs.stage_record import RowsName
from stages.data_check.recognition import ANSWERS, Recognised
from training_core.errors import ConfigError, DataError


@dataclass(frozen=True)
class Method:
    """What a method does and needs.

    Attributes:
        about: in a few words.
        rows: kind of the rows in its file.
        example: a change of one of its keys, as on the command line.
        columns: an example of the columns that fit.
        needs_prompts: whether the policy also answers the prompts of the rows.
        needs_answers: whether each prompt has a correct answer in another column.
        needs_teacher: whether a second model teaches.
        takes_registered: whether it can start from a registered model.
    """

    about: str
    rows: RowsName
    example: str
    columns: str
    needs_prompts: bool = False
    needs_answers: bool = False
    needs_teacher: bool = False
    takes_registered: bool = True


METHODS: Mapping[str, Method] = {
    "sft": Method(
        "imitate responses",
        "demonstrations",
        "sft.training.epochs=3",
        "messages, or prompt and response",
        takes_registered=False,
    ),
    "continued-pretraining": Method(
        "train on plain texts",
        "texts",
        "sft.training.epochs=3",
        "text",
        takes_registered=False,
    ),
    "dpo": Method(
        "prefer better responses", "preferences", "dpo.loss.beta=0.3", "prompt, chosen and rejected"
    ),
    "orpo": Method(
        "imitate and prefer better responses, without a reference",
        "preferences",
        "dpo.loss.beta=0.2",
        "prompt, chosen and rejected",
    ),
    "simpo": Method(
        "prefer better responses, without a reference",
        "preferences",
        "dpo.loss.gamma=1.5",
        "prompt, chosen and rejected",
    ),
    "kto": Method(
        "learn from responses that are good or bad",
        "unpaired_responses",
        "kto.loss.beta=0.3",
        "prompt, response and label",
    ),
    "grpo": Method(
        "learn by trial from a verifier",
        "prompts",
        "ppo.kl_coef=0.04",
        "prompt and answer",
        needs_answers=True,
    ),
    "ppo": Method(
        "learn by trial from a reward model",
        "preferences",
        "ppo.kl_coef=0.05",
        "prompt, chosen and rejected",
        needs_prompts=True,
    ),
    "rejection-sampling": Method(
        "imitate the best of one's own responses",
        "preferences",
        "rejection_sampling.group_size=16",
        "prompt, chosen and rejected",
        needs_prompts=True,
    ),
    "iterative-dpo": Method(
        "prefer the better of one's own responses, in rounds",
        "preferences",
        "iterative_dpo.rounds=5",
        "prompt, chosen and rejected",
        needs_prompts=True,
    ),
    "reward-model": Method(
        "score responses",
        "preferences",
        "reward_model.training.epochs=2",
        "prompt, chosen and rejected",
    ),
    "process-reward": Method(
        "score the steps of solutions",
        "solutions",
        "process_reward.training.epochs=2",
        "prompt, completions and labels",
    ),
    "distillation": Method(
        "imitate the distributions of a teacher",
        "demonstrations",
        "distillation.divergence.name=reverse_kl",
        "messages, or prompt and response",
        needs_teacher=True,
    ),
}
"""Every method, by the name of its template."""


def method_named(name: str) -> Method:
    """Return a method.

    Raises:
        ConfigError: if there is none of this name; the message has the nearest.
    """
    if name not in METHODS:
        near = get_close_matches(name, METHODS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"unknown method '{name}'; {hint}there are: {', '.join(METHODS)}")
    return METHODS[name]


def fitting_method(found: Recognised) -> str | None:
    """Return the most usual method for the columns of a file; None if none fits.

    Columns that fit one method only come first, e.g. labelled steps; they may also have prompts and
    responses, which fit several.
    """
    used = found.used
    is_verifiable = found.answers is not None and "prompts" in used
    order = {
        "process-reward": "solutions" in used,
        "dpo": "preferences" in used,
        "kto": "unpaired_responses" in used,
        "grpo": is_verifiable and (found.are_short or "demonstrations" not in used),
        "sft": "demonstrations" in used,
        "continued-pretraining": "texts" in used,
    }
    return next((name for name, fits in order.items() if fits), None)


def require_fit(name: str, found: Recognised) -> None:
    """Check that a file has the columns that a method needs.

    Raises:
        DataError: if it has not.
    """
    method = method_named(name)
    needed: list[RowsName] = [method.rows]
    if method.needs_prompts:
        needed.append("prompts")
    for kind in needed:
        if kind in found.refused:
            raise DataError(f"{name}: {found.refused[kind]} (`--column <role>=<column>`)")
    if method.needs_answers and found.answers is None:
        raise DataError(
            f"{name}: expected a column with correct answers, named {', '.join(ANSWERS)}, found "
            f"the columns {', '.join(found.columns)}; rename one"
        )


def no_method(found: Recognised) -> DataError:
    """Return the error for columns that fit no method."""
    known = dict.fromkeys(f"{method.columns} ({name})" for name, method in METHODS.items())
    return DataError(
        f"the columns {', '.join(found.columns)} fit no method; expected e.g. "
        f"{'; '.join(known)}. Name yours with `--column <role>=<column>`, e.g. "
        "`--column prompt=question`, or choose a `--method`"
    )
