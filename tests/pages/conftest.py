"""A browser beside the services of the finished demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.lifecycle.conftest import _no_run_is_left, demo_run, lifecycle
from website.chromium import DESKTOP, MISSING, chromium, chromium_path

__all__ = ["_no_run_is_left", "demo_run", "lifecycle"]

PATIENCE_MS = 60_000
"""The first load of a page takes long on a busy machine."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    if chromium_path() is None:
        pytest.skip(MISSING)
    with chromium() as browser:
        yield browser


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a window: `new_page(viewport=PHONE)`."""
    opened: list[Page] = []

    def open_one(**options: object) -> Page:
        page = browser.new_page(**{"viewport": DESKTOP, "color_scheme": "light", **options})
        page.set_default_timeout(PATIENCE_MS)
        opened.append(page)
        return page

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """A window of a desktop."""
    return new_page()
