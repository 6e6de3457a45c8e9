"""Files that Ratchet writes, spoiled by an editor or a disk."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import finite, laws, told
from torch import nn

from stages.files import read_jsonl
from stages.runtime.manifest import Manifest, manifest_text, record_files
from stages.runtime.requests import config_of, read_request, require_consistent
from stages.runtime.store import Request, Store
from training_core import checkpoint

KEY = "k" * 64

json_values = st.sampled_from(
    [
        None, True, 0, -1, 3, 2.5, 10**30, math.inf, math.nan, "", "8", "../x", "a/b", "a\n", "\0",
        [], {}, [1], {"a": 1}, [[]], "x" * 300,
    ]
)  # fmt: skip


@st.composite
def spoiled_json(draw: st.DrawFn, content: dict[str, Any]) -> bytes:
    """The text of `content` with one value changed, doubled or removed, or cut somewhere."""
    content = json.loads(json.dumps(content))
    place: Any = content
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not (isinstance(place[key], dict | list) and place[key] and draw(st.booleans())):
            break
        place = place[key]
    how = draw(st.sampled_from(["value", "value", "drop", "more", "cut", "double", "whole"]))
    if how == "value":
        place[key] = draw(json_values)
    elif how == "drop":
        del place[key]
    elif how == "more" and isinstance(place, dict):
        place[draw(st.sampled_from(["x", "../x", ""]))] = draw(json_values)
    text = json.dumps(draw(json_values) if how == "whole" else content)
    if how == "double":
        text = "{" + text[1:-1] + ", " + text[1:]
    return text[: draw(st.integers(0, len(text))) if how == "cut" else None].encode()


SFT = {"base": {"name": "scratch"}, "data": {"name": "cafe", "size": 8}, "seed": 3}
REQUEST = {
    "stage": "dpo", "step": "dpo_1", "key": KEY, "config": {"seed": 3, "nll_coef": 0.5},
    "inputs": {"policy": "/a", "reference": "/b", "dataset": "/c"},
    "input_digests": {"policy": "p", "reference": "r", "dataset": "d"}, "parents": {"policy": KEY},
}  # fmt: skip


@laws
@given(content=spoiled_json(REQUEST))
def test_a_spoiled_request_is_what_it_says_or_told(folder, content):
    path = folder / "request.json"
    path.write_bytes(content)

    def read() -> Request:
        request = read_request(path)
        assert config_of(request)
        require_consistent(request, Store(folder).attempt("dpo", KEY, "a1"))
        return request

    request = told(read)
    if request is not None:
        assert request.model_dump() == json.loads(content)
        assert finite(json.loads(content))


def finished(root: Path) -> tuple[Store, Manifest, Path]:
    store = Store(root)
    artifact = store.attempt("sft", KEY, "a1").artifact
    artifact.mkdir(parents=True)
    (artifact / "config.json").write_text("{}")
    files, digest = record_files(artifact)
    manifest = Manifest(
        stage="sft", step="sft", version=1, key=KEY, kind="policy", attempt="a1", config=SFT,
        input_digests={"data": "d"}, parents={}, files=files, digest=digest,
        metrics={"loss": 1.5, "examples": 8.0}, environment={"python": "3"},
        cost={"seconds": 2.0}, finished_at=1.0,
    )  # fmt: skip
    store.publish(manifest)
    return store, manifest, store.stage_dir("sft", KEY) / "manifest.json"


with TemporaryDirectory() as _folder:
    MANIFEST = json.loads(manifest_text(finished(Path(_folder))[1]))


@laws
@given(content=spoiled_json(MANIFEST))
def test_a_spoiled_manifest_is_found_as_it_was_or_not_at_all(content):
    with TemporaryDirectory() as root:
        store, manifest, path = finished(Path(root))
        path.write_bytes(content)
        listed = store.manifests()  # never an error
        found = told(lambda: store.find("sft", KEY), "manifest.json")
        assert listed == ([] if found is None else [found])
        assert found in (None, manifest)


@laws
@given(
    lines=st.lists(
        st.sampled_from([b'{"step": 1}', b'{"a": [', b"[]", b"", b"\xff", b'{"step": NaN}', b"\0"]),
        max_size=4,
    ),
    end=st.sampled_from([b"", b"\n", b'{"st']),
)
def test_a_spoiled_curve_has_its_whole_lines_or_is_told_with_the_line(folder, lines, end):
    path = folder / "metrics.jsonl"
    path.write_bytes(b"\n".join(lines) + end)
    rows = told(lambda: read_jsonl(path), "metrics.jsonl, line ")
    if rows is not None:
        whole = (b"\n".join(lines) + end).split(b"\n")[:-1]
        assert len(rows) in (len(whole), len(whole) - 1)
        assert all(isinstance(row, dict) for row in rows)


@pytest.fixture(scope="module")
def saved(folder) -> checkpoint.Checkpoint:
    return checkpoint.save(folder, 3, {"model": nn.Linear(1, 1)}, {"n": 1}, keep=2)


@laws
@given(data=st.data())
def test_a_spoiled_marker_is_told_and_its_checkpoint_is_whole_or_invisible(folder, saved, data):
    marker = saved.directory / checkpoint.MARKER
    written = marker.read_bytes()
    content = json.loads(written)
    marker.write_bytes(data.draw(spoiled_json(content)))
    try:
        found = checkpoint.complete_checkpoints([folder])
        state = told(lambda: checkpoint.load(saved, {"model": nn.Linear(1, 1)}), "step-00000003")
        assert found in ([], [saved])
        if state is not None:
            assert state == {"n": 1}
            assert found == [saved]
    finally:
        marker.write_bytes(written)
