"""A model of the Hugging Face hub by its id, from the hub's own cache, as without a network."""

import os
import shutil
import subprocess
import sys

from stages.runtime.store import Store

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_sft_starts_from_a_hub_id_and_a_commit(shared_data, tmp_path, write_request):
    repository = tmp_path / "hub/models--acme--stories"
    shutil.copytree(shared_data / "models/TinyStories-656K", repository / "snapshots" / COMMIT)
    store = Store(tmp_path / "store")
    config = {
        "base": {"name": "hub", "repo": "acme/stories", "revision": COMMIT},
        "chat_template": "User: {}\nAssistant: ",
        "data": {"name": "cafe", "size": 32},
        "eval_data": {"name": "cafe", "split": "heldout", "size": 16},
        "training": {"batch_size": 8, "max_tokens": 128, "optimizer": {"learning_rate": 1e-3}},
    }
    request = write_request(store, "sft", config)
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "stages", str(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    made = store.find("sft", request.parents[2].name)
    assert made.metrics["heldout_loss"] < made.metrics["heldout_loss_before"]

    absent = {**config, "base": {**config["base"], "repo": "acme/nothing"}}
    request = write_request(store, "sft", absent)
    command[-1] = str(request)
    assert (
        subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 20
    )
    assert "acme/nothing" in request.with_name("error.json").read_text()
