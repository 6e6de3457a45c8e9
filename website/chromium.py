"""A headless Chromium for the tests of pages and for the pictures in `docs/images`.

Playwright drives the Chromium that is installed on this machine, e.g. by `apt-get install
chromium`; nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Response,
    ViewportSize,
    sync_playwright,
)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    f"there is no Chromium on the PATH (one of {', '.join(NAMES)}); "
    "on Debian: apt-get install --no-install-recommends chromium"
)
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}


def chromium_path() -> str | None:
    """Return the path of an installed Chromium or Chrome; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium without windows.

    While it runs, this thread can run no other asyncio loop.

    Raises:
        FileNotFoundError: if none is installed.
    """
    path = chromium_path()
    if path is None:
        raise FileNotFoundError(MISSING)
    # Chromium's sandbox needs a user other than root.
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """What a page has complained about: errors of its scripts, and answers that are errors.

    Requests to other servers are left out, because a page must work without them.

    Attributes:
        page: the window.
        own: how the addresses of its own server begin.
        known: patterns of what the page's own software says and nobody sees.
        found: the complaints so far.
    """

    page: Page
    own: str
    known: Sequence[str] = ()
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", self._note_error)
        self.page.on("console", self._note_message)
        self.page.on("response", self._note_response)

    def _note_error(self, error: Error) -> None:
        self._add(f"error: {error}")

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self._add(f"console: {message.text}")

    def _note_response(self, response: Response) -> None:
        if response.status >= HTTPStatus.BAD_REQUEST and response.url.startswith(self.own):
            self._add(f"{response.status}: {response.url}")

    def _add(self, complaint: str) -> None:
        if not any(re.fullmatch(known, complaint, re.DOTALL) for known in self.known):
            self.found.append(complaint)


def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )
