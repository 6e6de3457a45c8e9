"""A model folder that brings Python code: the code never runs, whoever answers the question."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from training_core.errors import DataError
from training_core.models import hub

ROOT = Path(__file__).resolve().parents[3]
LOADS = {
    "policy": hub.load_policy,
    "reward model": hub.load_scalar_model,
    "process reward model": hub.load_step_model,
    "dtype": hub.recorded_dtype,
    "tokenizer": hub.load_tokenizer,
}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder whose code would create a file; `y` waits on standard input."""
    folder, ran = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "trap.py").write_text(
        f"from pathlib import Path\nPath({str(ran)!r}).touch()\n"
        "class Config: ...\nclass Model: ...\nclass Tokenizer: ...\n"
    )
    models = (
        "AutoModelForCausalLM",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
    )
    auto_map = {"AutoConfig": "trap.Config", **dict.fromkeys(models, "trap.Model")}
    (folder / "config.json").write_text(json.dumps({"model_type": "trap", "auto_map": auto_map}))
    tokenizer = {"auto_map": {"AutoTokenizer": ["trap.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    for file in ("model.safetensors", "tokenizer.json"):  # so that nothing is missing
        (folder / file).touch()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    # where transformers would copy the code before it runs it
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    return folder


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_code_of_a_model_folder_is_refused_and_not_run(trap, load):
    with pytest.raises(DataError, match=r"needs Python code .* Ratchet never runs such code"):
        load(trap)
    assert not (trap.parent / "ran").exists()


def test_weights_in_a_pickle_that_would_run_code_are_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    torch.save({"lm_head.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="holds something else than tensors, so it was not"):
        hub.load_policy(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_every_load_says_that_no_code_may_run():
    """Transformers and vLLM are asked only where `trust_remote_code` is given."""
    calls = {}
    for layer in ("flows", "tasks", "stages", "training_core"):
        for file in (ROOT / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and loads_a_model(node.func):
                    given = {k.arg or ast.unparse(k.value) for k in node.keywords}
                    calls[f"{file.relative_to(ROOT)}:{node.lineno}"] = bool(
                        given & {"trust_remote_code", "NO_CODE"}
                    )
    assert len(calls) == 5  # four in hub.py, one in vllm_engine.py
    assert all(calls.values()), calls
    assert hub.NO_CODE == {"trust_remote_code": False}


def loads_a_model(function: ast.expr) -> bool:
    """`X.from_pretrained(…)` or `LLM(…)`; an adapter of PEFT holds no code."""
    if isinstance(function, ast.Attribute):
        return function.attr == "from_pretrained" and ast.unparse(function.value) != "PeftModel"
    return isinstance(function, ast.Name) and function.id == "LLM"
