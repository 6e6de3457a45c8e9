"""What a person does on the pages of Prefect 3.7: the form of a run, Retry, Cancel, an approval."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from playwright.sync_api import Locator, Page

from website.chromium import Complaints

STATE_SET = re.compile(r"/flow_runs/[^/]+/(set_state|resume)$")
"""What the buttons of a run ask the server for. A page that is left at once asks for nothing."""

KNOWN = (
    # Another page was opened while it drew: what it drew is gone.
    r"error: Cannot read properties of null \(reading '\w+'\)",
    # It showed the log of a task that a busy server had not stored yet.
    r"console: [\w$]+: Batch lookup failed for id: .*",
)
"""What Prefect's pages say of themselves, as patterns; none of it is seen."""


@dataclass(frozen=True)
class PrefectPages:
    """The pages of a Prefect server, in one window.

    Attributes:
        page: the window.
        address: of the server, without a slash at the end.
    """

    page: Page
    address: str

    def complaints(self) -> list[str]:
        """Begin to note what the pages complain about, in the list that is returned."""
        return Complaints(self.page, self.address, KNOWN).found

    def open_deployment(self, deployment_id: UUID) -> None:
        """Open the page of a deployment."""
        self.page.goto(f"{self.address}/deployments/deployment/{deployment_id}")
        self.page.get_by_role("button", name="Run", exact=True).wait_for()

    def open_run(self, run_id: UUID) -> None:
        """Open the page of a flow run."""
        self.page.goto(f"{self.address}/runs/flow-run/{run_id}")
        self.page.locator(".page-heading-flow-run").wait_for()

    def leave(self) -> None:
        """Leave the page; one that shows a run draws, and asks the server, until the run ends."""
        self.page.goto("about:blank")

    def open_form(self, deployment_id: UUID) -> None:
        """Open the form of a run, as a person does: *Run*, *Custom run*."""
        self.open_deployment(deployment_id)
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_text("Custom run").click()
        self.field("preset").wait_for()

    def field(self, title: str, inside: Locator | None = None) -> Locator:
        """Return the field of a form with this title, and everything below it."""
        label = self.page.locator(".schema-form-property__label").get_by_text(
            re.compile(rf"^{title}( \(Optional\))?$")
        )
        fields = (inside or self.page).locator(".schema-form-property")
        return fields.filter(has=label).last

    def add_change(self, line: str) -> None:
        """Write one line of `changes`."""
        changes = self.field("changes")
        changes.get_by_role("button", name="Add").click()
        changes.locator("textarea").last.fill(line)

    def open_block(self, title: str, inside: Locator | None = None) -> Locator:
        """Press *change* at a block, and return it."""
        block = self.field(title, inside)
        block.get_by_role("button", name="change", exact=True).first.click()
        return block

    def submit(self) -> None:
        """Press *Submit*, and wait for the page to say that a run was created."""
        self.page.get_by_role("button", name="Submit").click()
        self.page.get_by_text("scheduled to start").first.wait_for()

    def read_log(self) -> Locator:
        """Move to the end of the log on the page of a run, and return it."""
        log = self.page.locator(".flow-run-logs")
        log.hover()
        self.page.mouse.wheel(0, 10_000)
        return log

    def open_artifact(self, key: str) -> None:
        """Open an artifact of a task from the page of its flow run."""
        self.page.get_by_text("Artifacts", exact=True).last.click()
        self.page.get_by_text("Task runs", exact=True).hover()
        self.page.mouse.wheel(0, 2000)  # those of tasks are loaded when they are looked at
        self.page.get_by_text(key, exact=True).click()

    def retry(self) -> None:
        """Press *Retry* on the page of a run, and again in the question."""
        self.page.get_by_role("button", name="Retry").click()
        with self.page.expect_response(STATE_SET):
            self.page.get_by_role("dialog").get_by_role("button", name="Retry").click()

    def cancel(self) -> None:
        """Press *Cancel* on the page of a run, and confirm."""
        self.page.get_by_role("button", name="Cancel").click()
        with self.page.expect_response(STATE_SET):
            self.page.get_by_role("dialog").get_by_role("button", name="Confirm").click()

    def open_approval(self) -> Locator:
        """Press *Resume* on the page of a run that waits for an answer, and return its form."""
        self.page.get_by_role("button", name="Resume").click()
        form = self.page.get_by_role("dialog")
        self.field("Reason", form).wait_for()
        return form

    def answer(self, form: Locator, answer: str, name: str, reason: str) -> None:
        """Fill in the form of an approval, and submit it."""
        choices = self.field("Answer", form).locator(".p-select-button__control")
        choices.press("ArrowDown")  # opens them; an automated click does not
        self.page.get_by_role("option", name=answer).click()
        self.field("Your name", form).locator("textarea").fill(name)
        self.field("Reason", form).locator("textarea").fill(reason)
        with self.page.expect_response(STATE_SET):
            form.get_by_role("button", name="Submit").click()
        form.wait_for(state="hidden")
