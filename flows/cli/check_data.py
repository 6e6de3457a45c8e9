"""`ratchet data check`: reads and tokenises every dataset of a preset before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.text import Text
from transformers import PreTrainedTokenizerBase

from flows.cli.terminal import Terminal
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.held_out_prompts import shared_prompts
from flows.recipe.outline import block_names, require_steps
from stages.configs.block import StageConfig
from stages.data_check import (
    Checked,
    Problem,
    check,
    datasets_of,
    marked_text,
    overlap,
    tokenizer_of,
)
from stages.data_check.planned_models import problems_of_models
from training_core.errors import DataError, InputError
from training_core.types import Example

EVALUATION = "evaluation"
NO_TOKENIZER = "there is no tokenizer, so nothing was tokenised"


def check_data(
    preset: str,
    overrides: Mapping[str, object],
    *,
    step: str | None = None,
    first_rows: int | None = None,
    num_examples: int = 2,
    console: Terminal | None = None,
) -> bool:
    """Print the contents of every dataset that a preset's steps name, and every problem found.

    Args:
        preset: a file of deployments/presets.
        overrides: changes to it.
        step: one block of the preset; None checks all.
        first_rows: read only so many rows of each dataset; None reads all.
        num_examples: rows of each dataset that are shown.
        console: where to print.

    Returns:
        Whether no problem would stop a step.

    Raises:
        ConfigError: for an unknown step, or a config that is not valid.
    """
    console = console or Terminal()
    config = load_config(preset, overrides)
    if step is not None:
        require_steps([step], [*block_names(), *config.steps])
    tokenizer, problems = _tokenizer(config)
    stages = {
        place: stage
        for place, stage in config.stages().items()
        if step is None or stage is config.step_config(step)
    }
    checked = [
        check(dataset, tokenizer, first_rows=first_rows, num_examples=num_examples)
        for place, stage in stages.items()
        for dataset in datasets_of(place, stage)
    ]
    for found in checked:
        _show(console, found, tokenizer)
    found = [problem for one in checked for problem in one.problems]
    problems = [_once(problem, found) for problem in problems] + found
    problems += _overlaps(checked)
    if step in (None, EVALUATION):
        problems += _evaluation_overlaps(config, first_rows)
    problems += _models(config, stages)
    _show_problems(console, problems)
    return not any(problem.stops for problem in problems)


def _tokenizer(config: LifecycleConfig) -> tuple[PreTrainedTokenizerBase | None, list[Problem]]:
    start = config.start()
    if start is None:
        text = (
            f"{NO_TOKENIZER}: no step has a base, and no given model is a directory or on the hub"
        )
        return None, [Problem("given", text, stops=False)]
    try:
        return tokenizer_of(start), []
    except InputError as error:
        return None, [Problem("sft.base", f"{NO_TOKENIZER}: {error}", stops=True)]


def _models(config: LifecycleConfig, stages: Mapping[str, StageConfig]) -> list[Problem]:
    start = config.start()
    if start is None:
        return []
    try:
        found = list(problems_of_models(start, stages))
    except InputError:  # the tokenizer's problem states it
        return []
    return [Problem(where, text, stops=True) for where, text in found]


def _once(missing: Problem, found: Sequence[Problem]) -> Problem:
    """Shorten the problem of the tokenizer if a dataset, whose words it needs, has the same one."""
    for one in found:
        if missing.text.endswith(one.text):
            return replace(missing, text=f"{NO_TOKENIZER}; see {one.where}")
    return missing


def _overlaps(checked: Sequence[Checked]) -> list[Problem]:
    """Held-out data of a step against what the same step trains on."""
    return [
        problem
        for held_out in checked
        for other in checked
        if held_out.dataset.step == other.dataset.step
        and other.dataset.is_training
        and not held_out.dataset.is_training
        if (problem := overlap(held_out, other))
    ]


def _evaluation_overlaps(config: LifecycleConfig, first_rows: int | None) -> list[Problem]:
    try:
        found = shared_prompts(config, first_rows)
    except DataError:  # the check of that dataset says why
        return []
    return [Problem(EVALUATION, text, stops=True) for text in found]


def _show(console: Terminal, found: Checked, tokenizer: PreTrainedTokenizerBase | None) -> None:
    console.print(Text(f"{found.dataset.name}: {found.dataset.kind.name}", style="bold"))
    for form in found.forms:
        console.print(Text(f"read as {form}"), soft_wrap=True)
    shown = ", ".join(f"{name} {value}" for name, value in found.numbers.items())
    console.print(Text(shown or "nothing could be read"), soft_wrap=True)
    if tokenizer is None:
        return
    for caption, example in found.examples:
        console.print(Text(f"{caption}, {len(example)} tokens", style="dim"))
        console.print(_marked(console, tokenizer, example), soft_wrap=True)
    console.print()


def _marked(console: Terminal, tokenizer: PreTrainedTokenizerBase, example: Example) -> Text:
    """Trained tokens bold and green in a terminal, in brackets elsewhere."""
    text = Text()
    for piece, is_trained in marked_text(tokenizer, example):
        if not is_trained:
            text.append(piece)
        elif console.is_terminal:
            text.append(piece, style="bold green")
        else:
            text.append(f"⟦{piece}⟧")
    return text


def _show_problems(console: Terminal, problems: Sequence[Problem]) -> None:
    if not problems:
        console.print("No problem found.")
    for problem in sorted(problems, key=lambda p: not p.stops):
        word, style = ("stops", "red") if problem.stops else ("note", "yellow")
        line = f"{word}: {problem.where}: {problem.text}"
        console.print(line, style=style, soft_wrap=True)
