"""What is installed as a package needs no repository beside it: the images install it so."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.config.presets import ROOT, preset_names

IMAGES = ROOT / "deployments" / "docker"
ASK = """
import json, os
from flows.config.presets import load_config, preset_names
from flows.local_services.paths import home_folder, project_root
from tasks.report.page import __file__ as page
homes = [str(home_folder())]
os.mkdir("../.ratchet")
homes.append(str(home_folder()))
names = [name for name in preset_names() if load_config(name)]
print(json.dumps([names, str(project_root()), homes, page]))
"""


def instructions(image: Path) -> list[tuple[str, list[str]]]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", image.read_text()))
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, shlex.split(rest)) for name, rest in lines]


def own_steps(image: Path) -> list[list[str]]:
    """The words of the steps that copy Ratchet's files, and then of that which installs it."""
    steps = instructions(image)
    copies = [words for name, words in steps if name == "COPY" and not words[0].startswith("--")]
    (install,) = (words for name, words in steps if name == "RUN" and words[-1] == ".")
    return [*copies, install]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder into which the last `pip install` of the CPU image puts Ratchet."""
    image, target = (tmp_path_factory.mktemp(name) for name in ("image", "site"))
    *copies, install = own_steps(IMAGES / "Dockerfile.cpu")
    for *sources, goal in copies:
        for source in sources:
            place = image / (source if goal == "./" else goal)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, place)
    command = [sys.executable, "-m", *install, "--quiet", "--target", str(target)]
    subprocess.run(command, cwd=image, check=True)
    shutil.rmtree(image)
    return target


def test_an_image_has_presets_deployments_and_templates_and_works_in_any_folder(
    installed, tmp_path
):
    dropped = ("RATCHET_HOME", "RATCHET_SHARED")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    folder = tmp_path / "below"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK],
        cwd=folder, env=environment | {"PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    names, root, homes, page = json.loads(done.stdout)
    assert names == preset_names()
    assert Path(root) == installed
    assert homes == [
        str(folder / ".ratchet"),
        str(tmp_path / ".ratchet"),
    ]  # the nearest that is there
    templates = {path.name for path in (Path(page).parent / "templates").iterdir()}
    assert templates == {path.name for path in (ROOT / "tasks/report/templates").iterdir()}
    deployments = yaml.safe_load((installed / "deployments" / "prefect.yaml").read_text())
    for entry in deployments["deployments"]:
        assert (installed / entry["entrypoint"].partition(":")[0]).is_file()


def test_both_images_install_the_same():
    cpu, gpu = (own_steps(IMAGES / name) for name in ("Dockerfile.cpu", "Dockerfile"))
    assert cpu[0][0] == "requirements/cpu.txt"
    assert gpu[0][0] == "requirements/gpu.txt"
    assert cpu[1:] == gpu[1:]
