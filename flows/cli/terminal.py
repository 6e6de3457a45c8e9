"""The door to the terminal: every command prints through this module.

Rows, names, values and paths come from outside. None of them is read as markup, and their control
characters are spelled out.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from stages.safe_text import printable, shown


class Terminal(Console):
    """A console on which every text is only text, also in the cells of a table.

    Args:
        options: arguments of rich's `Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich's text; before that, so that a table measures what it shows."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the parts of something to print; only rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def echo(value: object) -> None:
    """Print one line on standard output."""
    typer.echo(shown(value))


def write(piece: str) -> None:
    """Print a piece of a text on standard output at once, e.g. while a model makes it."""
    typer.echo(printable(piece), nl=False)


def note(text: str) -> None:
    """Print a line on standard error that is no result, e.g. how to leave."""
    typer.echo(shown(text), err=True)


def ask(question: str, default: str | None = None) -> str:
    """Ask a person; an empty answer is the default, or asked again."""
    return str(typer.prompt(question, default=default))


def tell_error(error: Exception) -> None:
    """Print an error that Ratchet raises on purpose: only its message."""
    typer.secho(shown(error), fg=typer.colors.RED, err=True)


def tell_unexpected_error() -> None:
    """Print the traceback of the present error, as Python does, but without passwords."""
    typer.echo(shown(traceback.format_exc()), err=True)


def quieten_libraries() -> None:
    """Send no usage data with Prefect's client; outside a terminal show no bar for every dataset.

    Both read the environment when they are imported.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def hide_loading_bars() -> None:
    """Hide the bars of transformers and the hub, e.g. "Loading weights"."""
    from huggingface_hub.utils import disable_progress_bars  # noqa: PLC0415 - only where models are
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415 - likewise

    disable_progress_bar()
    disable_progress_bars()
