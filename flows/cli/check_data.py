"""`ratchet data check`: reads and tokenises every dataset of a preset before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.recipe.outline import block_names, require_steps
from stages.data_check import (
    Checked,
    Problem,
    check,
    datasets_of,
    marked_text,
    overlap,
    tokenizer_of,
)
from training_core.errors import InputError
from training_core.types import Example

EVALUATION = "evaluation"


def check_data(
    preset: str,
    overrides: Mapping[str, object],
    *,
    step: str | None = None,
    first_rows: int | None = None,
    num_examples: int = 2,
    console: Console | None = None,
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
    console = console or Console()
    if step is not None:
        require_steps([step], block_names())
    config = load_config(preset, overrides)
    tokenizer, problems = _tokenizer(config)
    checked = [
        check(dataset, tokenizer, first_rows=first_rows, num_examples=num_examples)
        for block in ([step] if step else block_names())
        if (stage := getattr(config, block)) is not None
        for dataset in datasets_of(block, stage)
    ]
    for found in checked:
        _show(console, found, tokenizer)
    problems += [problem for found in checked for problem in found.problems]
    problems += _overlaps(checked)
    _show_problems(console, problems)
    return not any(problem.stops for problem in problems)


def _tokenizer(config: LifecycleConfig) -> tuple[Any, list[Problem]]:
    try:
        return tokenizer_of(config.sft), []
    except InputError as error:
        text = f"there is no tokenizer, so nothing was tokenised: {error}"
        return None, [Problem("sft.base", text, stops=True)]


def _overlaps(checked: Sequence[Checked]) -> list[Problem]:
    """Held-out data of a step against what it trains on; evaluation against what any step does."""
    trained = [c for c in checked if c.dataset.is_training]
    return [
        problem
        for held_out in checked
        for other in trained
        if held_out.dataset.step == EVALUATION
        or (held_out.dataset.step == other.dataset.step and not held_out.dataset.is_training)
        if (problem := overlap(held_out, other))
    ]


def _show(console: Console, found: Checked, tokenizer: Any) -> None:
    console.print(Text(f"{found.dataset.name}: {found.dataset.kind.name}", style="bold"))
    shown = ", ".join(f"{name} {value}" for name, value in found.numbers.items())
    console.print(Text(shown or "nothing could be read"), soft_wrap=True)
    for caption, example in found.examples:
        console.print(Text(f"{caption}, {len(example)} tokens", style="dim"))
        console.print(_marked(console, tokenizer, example), soft_wrap=True)
    console.print()


def _marked(console: Console, tokenizer: Any, example: Example) -> Text:
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


def _show_problems(console: Console, problems: Sequence[Problem]) -> None:
    if not problems:
        console.print("No problem found.")
    for problem in sorted(problems, key=lambda p: not p.stops):
        word, style = ("stops", "red") if problem.stops else ("note", "yellow")
        line = f"{word}: {problem.where}: {problem.text}"
        console.print(line, style=style, markup=False, soft_wrap=True)
