"""`ratchet doctor`: what on this machine will make runs fail, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rich.table import Table
from rich.text import Text

from flows.checkup import machine, packages, secrets, servers
from flows.checkup.finding import Finding, Level
from flows.cli.terminal import Terminal
from flows.local_services.paths import home_folder, store_folder

COLOURS = {Level.GOOD: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor() -> bool:
    """Print every finding, the bad ones with their fix.

    Returns:
        Whether there is no problem; warnings are none.
    """
    table = Table("check", "", "found", "what to do")
    levels: list[Level] = []
    for name, check in _checks().items():
        for finding in check():
            levels.append(finding.level)
            colour = COLOURS[finding.level]
            table.add_row(name, Text(finding.level, colour), finding.found, finding.fix)
    Terminal().print(table)
    return Level.PROBLEM not in levels


def _checks() -> dict[str, Callable[[], Iterable[Finding]]]:
    """Return every check by what it is about; another one is one function and one line here."""
    home, installed = home_folder(), packages.installed_versions()
    return {
        "packages": partial(packages.check_ranges, installed),
        "vLLM": partial(packages.check_sampler, installed),
        "compiler": packages.check_compiler,
        "GPUs": machine.check_gpus,
        "memory": machine.check_memory,
        "open files": machine.check_open_files,
        "store": partial(machine.check_disk, store_folder(home)),
        "secrets": partial(secrets.check_permissions, home),
        "servers": partial(servers.check_servers, home),
    }
