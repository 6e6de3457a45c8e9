"""What a Ray cluster is told, and what is told of it."""

from __future__ import annotations

import json
import shlex
import traceback
from pathlib import Path
from typing import Any

import pytest

from stages.configs.block import ResourcesConfig
from stages.runtime.ray_cluster import RayCluster
from training_core.errors import ConfigError, TransientError

AWAY = "http://ann:s3cret@127.0.0.1:1"


def test_a_password_in_the_address_is_shown_to_nobody():
    with pytest.raises(TransientError) as raised:
        RayCluster(AWAY).info("job")
    assert "the Ray cluster at http://127.0.0.1:1 did not answer" in str(raised.value)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(ConfigError, match="found 'ray://head:10001'"):
        RayCluster("ray://ann:s3cret@head:10001")


class Jobs:
    """A Jobs API that keeps what it is asked to run."""

    def submit_job(self, **job: Any) -> None:
        self.job = job


def submitted(request: Path) -> dict[str, Any]:
    cluster = RayCluster(AWAY)
    vars(cluster)["_client"] = jobs = Jobs()  # instead of the cached connection
    cluster.submit("sft-1", request, ResourcesConfig(), {})
    return jobs.job


def test_a_path_in_the_command_of_a_job_stays_one_word():
    request = Path("/a store/$(touch x); `id`/request.json")
    command = submitted(request)["entrypoint"]
    assert shlex.split(command) == ["exec", "python", "-m", "stages", str(request)]


def test_a_job_is_given_no_secret(monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "RAY_ADDRESS", "PREFECT_API_URL"):
        monkeypatch.setenv(name, AWAY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told = json.dumps(submitted(Path("request.json")), default=str)
    assert "HF_HUB_OFFLINE" in told
    assert "s3cret" not in told
