"""What all tests share: no network, no traces in the home folder, and a tiny model."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_cache = tempfile.mkdtemp(prefix="ratchet-tests-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_CACHE", _cache)  # read when `datasets` is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests that start processes by `forkserver` find these imported; only what is installed, since the
# server's path is not that of the tests.
multiprocessing.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama"])

LIFECYCLE = "tests/lifecycle/"


class Schedule(LoadFileScheduling):
    """A file is one piece of work, and so is the folder of lifecycles, which share their services.

    A lifecycle leaves a third of two cores idle; the other tests run in it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return LIFECYCLE if nodeid.startswith(LIFECYCLE) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Schedule:
    """Give tests to the processes of `pytest -n`."""
    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: not item.nodeid.startswith(LIFECYCLE))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One token per word of the café, with the `roles` template."""
    from training_core.data import cafe
    from training_core.data.chat import CHAT_TEMPLATES
    from training_core.models.scratch import make_tokenizer

    rows = cafe.rows("demonstrations", split="train", size=300, seed=0)
    texts = [" ".join(m["content"] for m in row["messages"]) for row in rows]
    return make_tokenizer(texts, CHAT_TEMPLATES["roles"])


@pytest.fixture(scope="session")
def make_policy(tokenizer: Any) -> Callable[..., Any]:
    """Build a Llama of two layers with random weights: `make_policy(seed=…)`."""
    from training_core.models import scratch

    def make(seed: int = 0, **sizes: int) -> Any:
        small = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32}
        architecture = scratch.Architecture(**{**small, "max_positions": 96, **sizes})
        return scratch.make_policy(architecture, tokenizer, seed=seed).eval()

    return make


@pytest.fixture(scope="session")
def make_scalar_model(tokenizer: Any) -> Callable[..., Any]:
    """Build a Llama with one output and random weights: a reward model or critic."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    def make(seed: int = 0) -> Any:
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_labels=1,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = LlamaForSequenceClassification(config)
            torch.nn.init.normal_(model.score.weight)  # its default is too small to see anything
        return model.eval()

    return make


@pytest.fixture(scope="session")
def cafe_prompts(tokenizer: Any) -> list[Any]:
    """Eight tokenised orders of different lengths."""
    from training_core.data import cafe
    from training_core.data.chat import encode_prompt

    rows = cafe.rows("prompts", split="train", size=8, seed=3)
    return [encode_prompt(tokenizer, str(i), row["prompt"]) for i, row in enumerate(rows)]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the repository, or where RATCHET_SHARED says."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("RATCHET_SHARED", beside)) / "data"
    if not folder.exists():
        pytest.skip(f"there is no {folder}; set RATCHET_SHARED to the folder with the shared data")
    return folder
