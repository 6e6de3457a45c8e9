"""The registry while MLflow is away, and what `ratchet resync` brings back."""

from __future__ import annotations

import shutil
import socket
import time
import traceback

import pytest
from real_services import steps_of, write_curve

from tasks.registry import Registry
from training_core.errors import IntegrityError, TransientError

pytestmark = pytest.mark.services


def test_a_server_that_is_away_is_told_at_once(store, finish, lifecycle, own_server):
    registry = Registry(own_server.uri, store)
    started = time.monotonic()

    with pytest.raises(TransientError, match=own_server.uri):
        registry.register(finish("sft"), lifecycle=lifecycle)

    assert time.monotonic() - started < 5


def test_a_password_in_the_address_is_shown_to_nobody(store):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    registry = Registry(f"http://ann:s3cret@127.0.0.1:{port}", store)

    with pytest.raises(TransientError) as raised:
        registry.models.aliases("tiny.policy")

    assert f"http://127.0.0.1:{port}" in str(raised.value)
    assert "s3cret" not in "".join(traceback.format_exception(raised.value))


def test_what_an_outage_interrupted_is_caught_up_afterwards(store, finish, lifecycle, own_server):
    own_server.start()
    registry = Registry(own_server.uri, store)
    manifest = finish("sft")
    curve = store.attempt("sft", manifest.key, "a1").metrics
    write_curve(curve, range(4))
    run_id = registry.runs.run_for(lifecycle, "sft", "sft", manifest.key, attempt="a1")
    registry.runs.mirror_metrics(run_id, curve)

    own_server.stop()
    write_curve(curve, range(4, 8))
    with pytest.raises(TransientError):
        registry.runs.mirror_metrics(run_id, curve)
    with pytest.raises(TransientError):
        registry.register(manifest, lifecycle=lifecycle)

    own_server.start()
    ref = registry.register(manifest, lifecycle=lifecycle)
    assert ref.run_id == run_id
    assert steps_of(registry, run_id) == list(range(8))

    # The database is lost altogether: everything comes back from the store.
    own_server.stop()
    (own_server.folder / "mlflow.db").unlink()
    own_server.start()
    (again,) = registry.resync(lifecycle)
    assert (again.version, again.digest) == (1, ref.digest)
    assert again.run_id != run_id
    assert steps_of(registry, again.run_id) == list(range(8))
    assert registry.models.resolve(f"models:/{lifecycle}.policy@sft") == again


def test_resync_takes_what_the_lifecycle_asked_for_and_names_what_is_broken(
    registry, store, finish, lifecycle
):
    whole, broken, foreign = finish("sft"), finish("dpo-1"), finish("dpo-2")
    registry.register(whole, lifecycle=lifecycle)
    registry.runs.run_for(lifecycle, broken.stage, broken.step, broken.key, attempt="a1")
    registry.register(foreign, lifecycle=f"{lifecycle}-other")
    shutil.rmtree(store.artifact_dir(broken))

    with pytest.raises(IntegrityError, match=broken.key):
        registry.resync(lifecycle)

    assert registry.models.aliases(f"{lifecycle}.policy") == {"sft": 1}
