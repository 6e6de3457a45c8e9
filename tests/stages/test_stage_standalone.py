"""`python -m stages sft config.yaml`, as a person types it under a debugger."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_stage_process import ROOT, SFT, STEPS, wait_for_step

from stages.files import read_jsonl
from stages.runtime.command_line import main
from stages.runtime.exit_codes import ExitCode
from stages.runtime.manifest import Manifest
from tests.stages.forked import StageProcess
from tests.stages.running import as_if_a_process

SHORT = {**SFT, "training": {**SFT["training"], "epochs": 1}}  # 25 steps


def write(path: Path, config: object) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


def typed(*arguments: object) -> int:
    """Do what `python -m stages …` does, in this process."""
    with as_if_a_process():
        return main([str(argument) for argument in arguments])


def manifest_in(out: Path) -> Manifest:
    return Manifest.model_validate_json((out / "manifest.json").read_bytes())


def test_a_config_that_names_python_objects_makes_none(tmp_path, capsys):
    config = tmp_path / "sft.yaml"
    config.write_text(f"seed: !!python/object/apply:os.mkdir ['{tmp_path}/ran']\n")
    assert typed("sft", config, "--out", tmp_path / "out") == ExitCode.BAD_INPUT
    assert "expected a value without a tag" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def sft(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("sft")
    out = folder / "sft-out"
    assert typed("sft", write(folder / "sft.yaml", SHORT), "--out", out) == 0
    return out


def test_a_stage_runs_from_a_shell_and_its_result_is_that_of_a_flow(tmp_path, store, finish):
    """A real process in the user's folder, with the default --out."""
    write(tmp_path / "sft.yaml", SHORT)
    done = subprocess.run(
        [sys.executable, "-m", "stages", "sft", "sft.yaml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    out = tmp_path / "sft-out"
    made = {path.name for path in out.iterdir()}
    assert made >= {"artifact", "metrics.jsonl", "progress.json", "log.txt", "manifest.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sft-out", "sft.yaml"]
    assert "sft is done" in done.stdout
    assert str(out / "artifact") in done.stdout
    assert f"  {'examples':<24} 200\n" in done.stdout
    expected = finish(store, "sft", SHORT)
    assert manifest_in(out).digest == expected.digest
    assert manifest_in(out).key == expected.key


def test_what_was_stopped_goes_on_when_it_is_typed_again(tmp_path):
    config = write(tmp_path / "sft.yaml", SFT)
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = StageProcess("sft", config, "--out", stopped)
    wait_for_step(process, stopped, 25)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    assert json.loads((stopped / "error.json").read_text())["kind"] == "StoppedError"
    before = json.loads((stopped / "progress.json").read_text())["done"]

    assert typed("sft", config, "--out", stopped) == 0
    assert typed("sft", config, "--out", whole) == 0

    assert f"resumed at step {before}" in (stopped / "log.txt").read_text()
    assert not (stopped / "error.json").exists()
    expected, found = (load_file(o / "artifact" / "model.safetensors") for o in (whole, stopped))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    steps = [line["step"] for line in read_jsonl(stopped / "metrics.jsonl")]
    assert steps == list(range(1, STEPS + 1))


def test_what_one_stage_made_is_the_input_of_the_next(tmp_path, sft, capsys):
    config = {"data": {"name": "cafe", "size": 40}, "training": SHORT["training"]}
    given = (f"policy={sft / 'artifact'}", f"reference={sft / 'artifact'}")
    out = tmp_path / "dpo"
    path = write(tmp_path / "dpo.yaml", config)

    assert typed("dpo", path, "--input", given[0], "--input", given[1], "--out", out) == 0

    first = read_jsonl(out / "metrics.jsonl")[0]["metrics"]
    assert first["dpo/loss"] == pytest.approx(0.693147, abs=1e-6)  # ln 2: policy is reference
    before, after = (load_file(o / "artifact" / "model.safetensors") for o in (sft, out))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert "dpo is done" in capsys.readouterr().out


# ------------------------------------------------------------------ what is refused, and how


def test_a_finished_run_is_not_overwritten(sft, capsys):
    before = (sft / "manifest.json").stat().st_mtime_ns
    assert typed("sft", sft.parent / "sft.yaml", "--out", sft) == 20
    assert "holds a finished run; choose another --out" in capsys.readouterr().err
    assert (sft / "manifest.json").stat().st_mtime_ns == before


def test_an_unfinished_run_of_another_config_is_not_resumed(tmp_path, sft, capsys):
    out = tmp_path / "out"
    shutil.copytree(sft, out)
    (out / "manifest.json").unlink()
    other = write(tmp_path / "sft.yaml", {**SHORT, "seed": 5})
    assert typed("sft", other, "--out", out) == 20
    assert "unfinished run of stage 'sft' with another config" in capsys.readouterr().err
    assert typed("sft", sft.parent / "sft.yaml", "--out", out) == 0


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, capsys):
    config = write(tmp_path / "sft.yaml", SHORT)
    assert typed("sft", config, "--out", tmp_path) == 20
    assert "exists and is not the folder of a run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["sft.yaml"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {**SHORT, "training": {"epoch": 1}},
            "training.epoch: unknown key; did you mean 'epochs'?",
        ),
        ({**SHORT, "training": {"epochs": 0}}, "training.epochs: Input should be greater than 0"),
        (["base"], "expected the fields of a sft config"),
        ({**SHORT, "resources": {"num_workers": 2}}, "resources.num_workers is 2"),
        ({**SHORT, "data": {"name": "files", "path": "gone.jsonl"}}, "data.path: there is no file"),
    ],
)
def test_a_wrong_config_is_explained_before_anything_is_written(tmp_path, capsys, config, expected):
    path = write(tmp_path / "sft.yaml", config)
    assert typed("sft", path, "--out", tmp_path / "out") == 20
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stage", "inputs", "expected"),
    [
        ("stf", (), "unknown stage 'stf'; did you mean 'sft'?"),
        ("kto", (), "stage 'kto' needs the input ['policy', 'reference']"),
        ("sft", ("polcy=.",), "stage 'sft' takes no input 'polcy'; did you mean 'policy'?"),
        ("sft", ("policy=gone",), "input policy: there is no directory gone"),
    ],
)
def test_a_wrong_stage_or_input_is_named(tmp_path, capsys, stage, inputs, expected):
    path = write(tmp_path / "config.yaml", {})
    asked = [word for each in inputs for word in ("--input", each)]
    assert typed(stage, path, *asked, "--out", tmp_path / "out") == 20
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_run_is_no_input_but_its_artifact_is(tmp_path, sft, capsys):
    path = write(tmp_path / "sft.yaml", {})
    assert typed("sft", path, "--input", f"policy={sft}", "--out", tmp_path / "out") == 20
    assert f"give its artifact, {sft / 'artifact'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("sft",),
        ("sft", "config.yaml", "--input", "policy"),
        ("sft", "config.yaml", "--input", "policy=a", "--input", "policy=b"),
        ("request.json", "--out", "here"),
    ],
)
def test_a_command_line_that_is_none_exits_2(arguments):
    with pytest.raises(SystemExit) as caught:
        typed(*arguments)
    assert caught.value.code == 2
