"""`ratchet demo`, where it does not end well: a real server, a real worker, and a run that fails.

tests/lifecycle shows a demo that ends well.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from typer.testing import CliRunner

from flows.cli import services
from flows.cli.main import app
from flows.cli.run_results import show_summary
from flows.cli.terminal import Terminal
from flows.local_services.paths import choose_ports
from flows.local_services.processes import family_of, listens, start, stop
from flows.local_services.state import ServiceRecord, load_records
from tests.flows.waiting import wait_until


def test_the_summary_has_a_row_per_step_the_verdict_and_the_report():
    rows = [
        {"step": "sft", "version": 3, "result": "loss 1 → 0.5", "seconds": 12.4, "reused": False},
        {"step": "evaluation", "version": None, "result": "", "seconds": 9.0, "reused": True},
    ]
    summary = {
        "lifecycle": "tiny",
        "rows": rows,
        "is_champion": True,
        "decision": "promote",
        "verdict": "it beats the SFT policy",
        "report_file": "/store/report.html",
    }
    shown = io.StringIO()
    show_summary(summary, Terminal(file=shown, width=100))
    text = shown.getvalue()
    lines = [line.split("│") for line in text.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [["sft", "3", "loss 1 → 0.5", "12"], ["evaluation", "reused"]]
    assert "decision         promote" in text
    assert "champion         yes, it beats the SFT policy" in text
    assert "report           /store/report.html" in text
    assert "try it           ratchet chat tiny@champion" in text


def test_a_run_of_an_earlier_version_has_no_verdict_in_words():
    shown = io.StringIO()
    summary = {"rows": [], "is_champion": False, "report_file": "/store/report.html"}
    show_summary(summary, Terminal(file=shown, width=100))
    assert "champion         no\n" in shown.getvalue()
    assert "ratchet chat" not in shown.getvalue()


@pytest.fixture
def outside(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A home whose servers are a team's; two of them answer every question with an error."""
    (port,) = choose_ports((0,))
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    pid, created = start(command, environment={}, folder=tmp_path, log=tmp_path / "log")
    url = f"http://127.0.0.1:{port}"
    server = ServiceRecord(name="it", url=url, ports=(port,), pid=pid, created=created)
    home = tmp_path / "home"
    monkeypatch.setenv("RATCHET_HOME", str(home))
    monkeypatch.setenv("RATCHET_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_API_URL", str(client.api_url).rstrip("/"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("RAY_ADDRESS", url)
    try:
        wait_until(lambda: listens(server), seconds=60)
        yield home
    finally:
        services.down(home)
        stop(family_of(server), grace_seconds=5)


@pytest.mark.services
@pytest.mark.timeout(900)
def test_a_demo_whose_run_fails_says_so_and_exits_1(outside: Path):
    result = CliRunner().invoke(app, ["demo", "promote/default"])
    assert result.exit_code == 1, result.output
    assert "$ prefect deployment run promote/default" in result.output
    assert "reason           " in result.output
    assert "champion" not in result.output
    assert "MLflow           http://127.0.0.1:" in result.output
    records = load_records(outside)
    run_id = result.output.partition("/runs/flow-run/")[2][:36]
    answer = httpx.get(f"{records.services['prefect'].url}/flow_runs/{run_id}")
    assert answer.json()["state_type"] == "FAILED"


@pytest.mark.services
@pytest.mark.timeout(900)
def test_a_deployment_that_does_not_exist_is_an_error(outside: Path):
    result = CliRunner().invoke(app, ["demo", "full-rlhf/tinny"])
    assert result.exit_code == 1
    assert load_records(outside).services["prefect"].is_external
    assert "there is no deployment 'full-rlhf/tinny'; `prefect deployment ls`" in result.stderr
