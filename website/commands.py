"""The reference of the commands, from their own help texts."""

from __future__ import annotations

import contextlib
import io
import re

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from flows.cli.main import app
from stages.runtime.command_line import main

PLACE = "reference/commands.md"
TOP = """\
# Commands

Made from the commands themselves when this site is built. `<command> --help` prints the same.

"""
STAGES = """\
## `python -m stages`

One stage without flow, store and services ([operations](../operations.md#without-services)):

```text
{}
```
"""


def page() -> str:
    """Return the page, in Markdown."""
    command = get_command(app)
    ratchet = get_docs_for_click(obj=command, ctx=typer.Context(command), name="ratchet")
    return TOP + _one_level_down(escaped(ratchet)) + STAGES.format(_help_of_stages())


def _help_of_stages() -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(["--help"])
    return printed.getvalue()


def _one_level_down(text: str) -> str:
    return re.sub("^#", "##", text, flags=re.MULTILINE)


def escaped(text: str) -> str:
    """Return Markdown in which `<name>` and `|` outside of code are only characters."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    return "".join(
        part if number % 2 else part.replace("<", "&lt;").replace("|", "&#124;")
        for number, part in enumerate(parts)
    )
