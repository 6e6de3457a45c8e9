"""The pictures in `docs/images`, taken of the pages after a `ratchet demo`: `make screenshots`.

The services have to run. Two runs are created and deleted afterwards: one that cannot start, for
the picture of Retry, and one whose steps are all reused and which waits for an approval. No other
run is changed.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_services.paths import home_folder
from flows.local_services.state import load_records
from website.chromium import chromium
from website.links import ROOT
from website.prefect_pages import PrefectPages

FOLDER = ROOT / "docs" / "images"
SIZE: ViewportSize = {"width": 1200, "height": 640}
TALL: ViewportSize = {"width": 1200, "height": 960}
"""Of a page with a form above it."""

COLOURS = 96
"""Of a picture's palette: pages have few, and a picture with a palette is a fourth of the size."""

LOG_ORDER = ("cache-key-5:prefect-ui-library-default-logs-sort", '"TIMESTAMP_DESC"')
"""Where Prefect's page keeps the order of log lines that a person has chosen: newest first."""

DEPLOYMENT = "full-rlhf/tiny"
SETTLE_MS = 1500
"""Until graphs and messages have stopped moving."""

WAIT_SECONDS = 300


def main() -> None:
    """Take all pictures."""
    home = home_folder()
    prefect = load_records(home).services["prefect"].url
    with (
        chromium() as browser,
        temporary_settings({PREFECT_API_URL: prefect}),
        get_client(sync_client=True) as client,
    ):
        report = newest_report(home)
        address = str(prefect).removesuffix("/api")
        take(browser, "report.png", lambda page: page.goto(report.as_uri()))
        take(browser, "prefect-form.png", lambda page: show_form(page, address, client))
        failed = begin(client, ["ppo.kl_coeff=0.1"], until="Failed")
        take(browser, "prefect-retry.png", lambda page: show_retry(page, address, failed))
        client.delete_flow_run(failed)
        asking = ["name=picture", "promotion.approval.required=true"]
        waiting = begin(client, asking, until="Suspended")
        show = partial(show_approval, address=address, run_id=waiting)
        take(browser, "prefect-approval.png", show, size=TALL)
        client.delete_flow_run(waiting)


def take(
    browser: Browser, name: str, show: Callable[[Page], object], size: ViewportSize = SIZE
) -> None:
    """Open a window, show something in it, and keep a picture of it."""
    page = browser.new_page(viewport=size, color_scheme="light")
    show(page)
    page.wait_for_timeout(SETTLE_MS)
    picture = Image.open(io.BytesIO(page.screenshot()))
    FOLDER.mkdir(parents=True, exist_ok=True)
    picture.convert("RGB").quantize(COLOURS).save(FOLDER / name, optimize=True)
    page.close()


def newest_report(home: Path) -> Path:
    """Return the page of the newest report of `full-rlhf`."""
    found = sorted(home.glob("store/reports/*/report.html"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise FileNotFoundError(f"there is no report in {home}; run `ratchet demo` first")
    return found[-1]


def show_form(page: Page, address: str, client: SyncPrefectClient) -> None:
    """Show the form of a run, with one change."""
    pages = PrefectPages(page, address)
    pages.open_form(client.read_deployment_by_name(DEPLOYMENT).id)
    pages.add_change("ppo.kl_coef=0.1")


def begin(client: SyncPrefectClient, changes: list[str], until: str) -> UUID:
    """Start a run with changes, and wait until its state has a name."""
    deployment = client.read_deployment_by_name(DEPLOYMENT)
    run = client.create_flow_run_from_deployment(deployment.id, parameters={"changes": changes})
    deadline = time.monotonic() + WAIT_SECONDS
    while client.read_flow_run(run.id).state_name != until:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run {run.id} was not {until} within {WAIT_SECONDS} s")
        time.sleep(1)
    return run.id


def show_retry(page: Page, address: str, run_id: UUID) -> None:
    """Show the page of a failed run, with the error among the first lines of its log."""
    page.add_init_script(f"localStorage.setItem({LOG_ORDER[0]!r}, {LOG_ORDER[1]!r})")
    PrefectPages(page, address).open_run(run_id)


def show_approval(page: Page, address: str, run_id: UUID) -> None:
    """Show the form of a run that waits for a person."""
    pages = PrefectPages(page, address)
    pages.open_run(run_id)
    pages.open_approval()


if __name__ == "__main__":
    main()
