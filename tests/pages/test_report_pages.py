"""The report of the demo in a real Chromium, and the pages of MLflow to which it links."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests.lifecycle.driver import Lifecycle
from website.chromium import DESKTOP, PHONE, Complaints, overflow
from website.prefect_pages import PrefectPages

pytestmark = pytest.mark.lifecycle

WIDTHS = pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])

ASKED_IN_VAIN = (r"404: .*(/users/current|get-artifact\?path=MLmodel).*",)
"""What MLflow's pages ask a server without logins for, and a version that has no `log_model`."""


@pytest.fixture
def report(lifecycle: Lifecycle, demo_run: UUID) -> Path:
    return Path(lifecycle.summary(demo_run)["report_file"])


def links_of(page: Page) -> list[str]:
    return page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")


@WIDTHS
def test_the_report_fits_the_window_and_shows_its_plots(
    new_page: Callable[..., Page], report: Path, viewport: dict[str, int]
) -> None:
    page = new_page(viewport=viewport)
    complaints = Complaints(page, "file:").found
    page.goto(report.as_uri())
    assert overflow(page) == 0
    plots = page.locator("svg:visible")
    boxes = [box for plot in plots.all() if (box := plot.bounding_box())]
    assert len(boxes) > 10
    for box in boxes:
        assert box["width"] > 100
        assert box["height"] > 40
    assert complaints == []


@WIDTHS
def test_the_list_of_reports_fits_the_window_and_leads_to_the_report(
    new_page: Callable[..., Page], report: Path, viewport: dict[str, int]
) -> None:
    page = new_page(viewport=viewport)
    page.goto((report.parents[1] / "index.html").as_uri())
    assert overflow(page) == 0
    page.locator(f'a[href*="{report.parent.name}"]').click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny")
    for link in links_of(page):
        parts = urlsplit(link)
        if parts.scheme == "file":
            assert Path(unquote(parts.path)).exists(), link


def test_the_links_of_the_report_open_the_pages_of_its_runs_and_versions(
    lifecycle: Lifecycle, page: Page, report: Path, demo_run: UUID
) -> None:
    page.goto(report.as_uri())
    links = list(dict.fromkeys(link for link in links_of(page) if link.startswith("http")))
    mlflow = lifecycle.environment["MLFLOW_TRACKING_URI"]
    complaints = Complaints(page, mlflow, ASKED_IN_VAIN).found
    versions = [link for link in links if "/versions/" in link]
    runs = [link for link in links if "/#/experiments/" in link]
    (own,) = set(links) - {*versions, *runs}
    assert own.endswith(str(demo_run))
    for link in versions:
        page.goto(link)
        number = re.findall(r"/versions/(\d+)", link)[0]
        expect(page.get_by_text(f"Version {number}").first).to_be_visible()
        expect(page.get_by_text("What it is.")).to_be_visible()
    for link in runs:
        page.goto(link)
        expect(page.get_by_text("Parameters").first).to_be_visible()
    assert len(versions) >= 5
    assert len(runs) >= 8
    assert complaints == []


def test_the_artifact_of_a_run_leads_to_its_report_in_mlflow(
    lifecycle: Lifecycle, page: Page, demo_run: UUID
) -> None:
    prefect = lifecycle.environment["PREFECT_API_URL"].removesuffix("/api")
    pages = PrefectPages(page, prefect)
    complaints = pages.complaints()
    pages.open_run(demo_run)
    pages.open_artifact("lifecycle-report")
    expect(page.get_by_role("cell", name="Evaluation").first).to_be_visible()
    link = page.get_by_role("link", name="The whole report")
    address = str(link.get_attribute("href"))
    assert complaints == []
    page.goto(address)
    shown = page.frame_locator("iframe").get_by_role("heading", level=1)
    expect(shown).to_have_text("tiny")
