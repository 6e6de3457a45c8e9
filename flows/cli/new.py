"""`ratchet new`: a commented preset for a person's own data, checked before the first run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.cli import terminal
from flows.cli.check_data import check_data
from flows.new_preset.methods import (
    METHODS,
    fitting_method,
    method_named,
    no_method,
    require_fit,
)
from flows.new_preset.model_facts import ModelFacts, facts_of
from flows.new_preset.places import model_place, relative
from flows.new_preset.preset_text import MAX_CPUS, Choices, Machine, preset_text
from stages.configs.data_config import FileDataConfig
from stages.data_check.recognition import Recognised, recognise_columns
from stages.files import write_text
from training_core.errors import ConfigError
from training_core.names import is_name

CHECKED_ROWS = 1000
"""Rows that the data check reads; enough to see what is wrong, and quick for large files."""


@dataclass(frozen=True)
class Wishes:
    """What a person asks for; what is None is asked, or found out.

    Attributes:
        model: a folder, an id of the hub, or a registered version.
        data: file with the rows, or a glob.
        method: an entry of `METHODS`.
        eval_data: file with held-out rows.
        teacher: model to learn from.
        columns: role -> column.
        gpus: to train on.
        lora: whether to train an adapter.
        may_overwrite: whether an existing preset is replaced.
        may_ask: whether to ask, if there is a terminal.
    """

    model: str | None
    data: str | None
    method: str | None
    eval_data: str | None = None
    teacher: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    lora: bool = False
    may_overwrite: bool = False
    may_ask: bool = True


def write_new(directory: Path, wishes: Wishes) -> bool:
    """Write a preset, check its data, and print what comes next.

    Args:
        directory: for the preset; created if it does not exist.
        wishes: from the command line.

    Returns:
        Whether no problem in the data would stop the run.

    Raises:
        ConfigError: if something is missing and cannot be asked; if there is a preset already.
        DataError: if the data cannot be read, or its columns do not fit the method.
    """
    can_ask = wishes.may_ask and has_terminal()
    _require_flags(wishes, can_ask)
    model = wishes.model or terminal.ask("Model to start from (a folder, or an id of the hub)")
    data = wishes.data or terminal.ask("File with your rows (json, jsonl, csv or parquet)")
    found = recognise_columns(FileDataConfig(path=_from_here(data), columns=dict(wishes.columns)))
    method = wishes.method or _chosen_method(found, can_ask)
    require_fit(method, found)
    _show_columns(data, method, found)
    file = directory / f"{method}.yaml"
    if file.exists() and not wishes.may_overwrite:
        raise ConfigError(
            f"{file} exists; give --overwrite to replace it, or choose another folder"
        )
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"expected a folder, found the file {directory}; choose another name")
    teacher = _teacher(wishes, method, can_ask)
    choices = _choices(file, method, model, data, found=found, wishes=wishes, teacher=teacher)
    write_text(file, preset_text(choices))
    terminal.echo(f"wrote {file}; the first {CHECKED_ROWS:,} rows of its data are checked now\n")
    is_fine = check_data(str(file), {}, first_rows=CHECKED_ROWS, num_examples=1)
    _show_next(file, is_fine)
    return is_fine


def has_terminal() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _require_flags(wishes: Wishes, can_ask: bool) -> None:
    given = {"--model": wishes.model, "--data": wishes.data}
    if wishes.method is not None and method_named(wishes.method).needs_teacher:
        given["--teacher"] = wishes.teacher
    missing = [flag for flag, value in given.items() if value is None]
    if missing and not can_ask:
        raise ConfigError(
            f"expected {' and '.join(missing)}, because nobody can be asked here; e.g. ratchet new "
            "mine --model Qwen/Qwen2.5-0.5B-Instruct --data rows.jsonl"
        )


def _chosen_method(found: Recognised, can_ask: bool) -> str:
    """Return the method that fits the columns, or which a person prefers to it."""
    fitting = fitting_method(found)
    if fitting is None:
        raise no_method(found)
    if not can_ask:
        return fitting
    for name, method in METHODS.items():
        terminal.echo(f"  {name:<22} {method.about}")
    return terminal.ask("Method", default=fitting)


def _teacher(wishes: Wishes, method: str, can_ask: bool) -> str | None:
    if not METHODS[method].needs_teacher or wishes.teacher is not None:
        return wishes.teacher
    if not can_ask:
        raise ConfigError(f"{method}: expected --teacher, the model to learn from, found none")
    return terminal.ask("Teacher (a folder, or an id of the hub)")


def _show_columns(data: str, method: str, found: Recognised) -> None:
    """Print which columns the method takes, and which it does not use."""
    needs = METHODS[method]
    answers = [found.answers] if needs.needs_answers and found.answers else []
    used = [c for c in found.columns if c in found.used[needs.rows] or c in answers]
    unused = found.unused(needs.rows, *answers)
    terminal.echo(f"{data}: {found.rows:,} rows")
    terminal.echo(f"  method    {method}: {needs.about}")
    terminal.echo(f"  used      {', '.join(used)}")
    terminal.echo(f"  not used  {', '.join(unused) or 'none'}")


def _choices(
    file: Path,
    method: str,
    model: str,
    data: str,
    *,
    found: Recognised,
    wishes: Wishes,
    teacher: str | None,
) -> Choices:
    folder = file.parent
    place = model_place(model, folder)
    if place.config is None and not METHODS[method].takes_registered:
        raise ConfigError(
            f"{method}: expected a folder or an id of the hub, found {model}; write the registered "
            "model to a folder with `ratchet export`"
        )
    name = f"{folder.resolve().name}-{method}"
    return Choices(
        name=name if is_name(name) else method,
        method=method,
        file=str(file),
        model=place.text,
        base=place.base,
        path=relative(data, folder),
        rows=found.rows,
        columns=wishes.columns,
        eval_path=wishes.eval_data and relative(wishes.eval_data, folder),
        teacher=teacher and model_place(teacher, folder).text,
        answers=found.answers,
        answers_are_numbers=found.are_numbers,
        facts=ModelFacts() if place.config is None else facts_of(place.config),
        machine=_machine(wishes.gpus),
        lora=wishes.lora,
    )


def _machine(gpus: int | None) -> Machine:
    import torch  # noqa: PLC0415 - it was imported with the tokenizer

    cpus = len(os.sched_getaffinity(0))
    here = torch.cuda.device_count()
    memory = int(torch.cuda.get_device_properties(0).total_memory / 2**30) if here else None
    number = here if gpus is None else gpus
    return Machine(cpus if number else min(MAX_CPUS, cpus), number, memory)


def _from_here(data: str) -> str:
    return str(Path(data).expanduser().absolute())


def _show_next(file: Path, is_fine: bool) -> None:
    """Print the commands that come next."""
    terminal.echo("")
    if not is_fine:
        terminal.echo(f"Mend what stops the run, then: ratchet data check {file}")
        return
    terminal.echo("Next:")
    terminal.echo(f"  ratchet plan {file}    what it does, and what it needs")
    terminal.echo(f"  ratchet run {file}     do it (`ratchet up` and `ratchet deploy` first, once)")
