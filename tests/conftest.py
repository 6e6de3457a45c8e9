"""What all tests share: no network, no traces in the home folder, and a tiny model."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.tasks.real_services import MlflowServer

_cache = tempfile.mkdtemp(prefix="ratchet-tests-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
# Of all processes of a run; another pytest that a test starts finds that of its parent.
BEGAN_THE_RUN = os.environ.setdefault("RATCHET_TESTS_SHARED", _cache) == _cache
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_CACHE", _cache)  # read when `datasets` is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray's own 15 would leave stages almost no time while other tests keep all cores busy.
os.environ.setdefault("RAY_worker_niceness", "0")

# Most objects of a test process are imported ones, which are no garbage: a search through all of
# them after every few hundred new ones would take an eighth of the time.
gc.set_threshold(50_000, 50, 50)

# Tests that start processes by `forkserver` find these imported; only what is installed, since the
# server's path is not that of the tests.
multiprocessing.set_forkserver_preload(["torch", "transformers.models.llama.modeling_llama"])

LIFECYCLE = ("tests/lifecycle/", "tests/pages/")
"""What uses the services of the demo."""

DEMO = ("tests/lifecycle/test_demo.py", "tests/lifecycle/test_documented_commands.py")


class Schedule(LoadFileScheduling):
    """A file is one piece of work, and so is all that uses the services of the demo.

    Runs at the same time would wait for one another's CPU cores on the demo's Ray, and would move
    one another's champion. A lifecycle leaves a third of two cores idle; the other tests run in it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "demo" if nodeid.startswith(LIFECYCLE) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Schedule:
    """Give tests to the processes of `pytest -n`."""
    return Schedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The demo first, then what needs it, then what takes long, then the rest."""
    is_long = {i.path for i in items if any(map(i.get_closest_marker, ("services", "slow")))}
    items.sort(key=lambda item: _place(item, is_long))
    for item in items:
        if item.nodeid.startswith(LIFECYCLE):  # one of them waits for the whole demo
            item.add_marker(pytest.mark.timeout(1800))


def _place(item: pytest.Item, is_long: set[Path]) -> int:
    if item.nodeid.startswith(DEMO):
        return 0
    if item.nodeid.startswith(LIFECYCLE):
        return 1
    return 2 if item.path in is_long else 3


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and there is none")


def pytest_sessionfinish() -> None:
    """Stop the services of the demo, which all processes have used."""
    if BEGAN_THE_RUN:
        from tests.lifecycle.finished_demo import stop_services

        stop_services()


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
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A real MLflow server; a test uses names of its own there."""
    from tests.tasks.real_services import MlflowServer

    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


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
