"""When stages may be forked: who shares a server, and when it forks no longer."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime import forked_stage
from stages.runtime.exit_codes import ExitCode
from stages.runtime.forked_stage import FOLDER_VARIABLE, PER_PROCESS, fork_stage
from stages.runtime.worker_processes import rank_environment
from tests.stages.fork_servers import ROOT, ForkServers, wait_until, wait_until_gone

pytestmark = pytest.mark.slow


@pytest.fixture
def servers():
    ours = ForkServers()
    yield ours
    ours.close()


def test_a_server_ends_when_a_file_that_it_imported_changes(servers, tmp_path):
    copy = tmp_path / "copy"
    for name in ("stages", "training_core"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    request = tmp_path / "request.json"
    request.write_text("{}")
    process = servers.type_it(request, folder=copy)
    assert "expected a request" in process.communicate()[0]
    wait_until(lambda: len(servers.processes()) == 1)  # who has watched the stage leaves last
    (server,) = servers.processes()
    source = copy / "stages/runtime/requests.py"
    source.write_text(source.read_text().replace("expected a request", "wanted a request"))
    process = servers.type_it(request, folder=copy)
    printed = process.communicate()[0]
    assert "this stage does its own imports" in printed
    assert "wanted a request" in printed
    assert process.returncode == ExitCode.BAD_INPUT
    wait_until_gone([server])


def printed(program: str) -> list[str]:
    """What a program prints, in an interpreter of its own, without the variables of stages."""
    # `dict(os.environ)` reads all that are set, and an `import ray` in this process sets one.
    kept = {name: value for name, value in os.environ.items() if not forked_stage._is_own(name)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


PROBLEMS = """
import threading
from stages.runtime import fork_server
print(fork_server._problem())
gpu = open("/dev/zero")
fork_server.GPUS = ("/dev/zero",)
print(fork_server._problem())
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(fork_server._problem())
"""


def test_a_server_forks_only_while_it_has_one_thread_and_no_gpu():
    assert printed(PROBLEMS) == [
        "None",
        "expected no open GPU after the imports, found /dev/zero",
        "expected one thread after the imports, found 2",
    ]


def test_where_forks_are_not_safe_no_server_is_started_again(servers, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(forked_stage, "_key_of", lambda _: "unsafe")
        servers.folder.joinpath("unsafe.refused").touch()
        environment = {FOLDER_VARIABLE: str(servers.folder)}
        assert fork_stage(Path("request.json"), environment) is None
    assert not servers.folder.joinpath("unsafe.log").exists()


IDLE = """
import os, site, socket, tempfile, time
from pathlib import Path
from stages.runtime import fork_server
fork_server.IDLE_SECONDS = 0.1
folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "server.sock")
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(0.01)
    print(fork_server._fork_stages(path, listener, time.time()), path.exists())
print(Path(site.getsitepackages()[0]) in fork_server._imported_files())
began = time.time()
inner = Path(folder.name, "package")
inner.mkdir()
print(fork_server._has_changed([inner.parent], began - 1))
os.utime(inner.parent, (began - 9, began - 9))
inner.parent.chmod(0o755)
print(fork_server._has_changed([inner.parent], began - 1))
"""


def test_a_server_ends_when_it_is_idle_and_sees_a_package_that_is_installed_meanwhile():
    assert printed(IDLE) == ["None True", "True", "True", "False"]


READS = """
import os
read = set()
class Recorder(type(os.environ)):
    def __getitem__(self, name):
        read.add(name)
        return super().__getitem__(name)
os.environ.__class__ = Recorder
from stages.runtime import fork_server, forked_stage
fork_server._import_all()
print("HF_HOME" in read, [name for name in read if forked_stage._is_own(name)])
"""


def test_no_import_reads_what_differs_between_the_stages_of_a_server():
    assert printed(READS) == ["True []"]


def test_without_a_folder_stages_do_their_own_imports(capsys):
    assert fork_stage(Path("request.json"), {}) is None
    assert fork_stage(Path("request.json"), {FOLDER_VARIABLE: ""}) is None
    assert capsys.readouterr().err == ""


def test_only_processes_that_would_import_the_same_share_a_server():
    ranks = rank_environment(1, 2, "host", 7, local_rank=1)
    assert set(ranks) == set(PER_PROCESS)
    different = ["OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"]
    keys = {forked_stage._key_of({name: "1"}) for name in different}
    assert len(keys | {forked_stage._key_of({})}) == 5


def test_a_folder_of_sockets_that_others_may_enter_is_refused(tmp_path, capsys):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    assert fork_stage(Path("request.json"), {FOLDER_VARIABLE: str(open_to_all)}) is None
    assert "with mode 700, found" in capsys.readouterr().err
    assert list(open_to_all.iterdir()) == []


def test_the_folder_of_the_sockets_is_made_private(tmp_path):
    folder = tmp_path / ("long" * 30)  # too long for a socket, so no server is started
    assert fork_stage(Path("request.json"), {FOLDER_VARIABLE: str(folder)}) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
