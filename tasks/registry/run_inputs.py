"""The datasets of a stage as inputs of its MLflow run.

The same entries that `mlflow.log_input` makes, without importing `mlflow.data` and its dataframes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from stages.catalog import find_stage
from stages.runtime.manifest import Manifest
from stages.runtime.stage_key import digest_of

DIGEST_LENGTH = 36  # MLflow's limit
NAME_LENGTH = 120

DataFields = Mapping[str, Any]


def datasets_of(manifest: Manifest) -> list[DatasetInput]:
    """Return the datasets that a stage read: outputs of other stages, and those of its config."""
    record = find_stage(manifest.stage)
    found = [
        _input("training", role, digest, "ratchet", {"stage_key": manifest.parents.get(role)})
        for role, digest in manifest.input_digests.items()
        if record.kind_of(role) == "dataset"
    ]
    for field, use in record.reads.items():
        context = "training" if use.is_trained_on else "evaluation"
        for place, source in _sources_at(field, _at(manifest.config, field)):
            found.append(_of_config(context, place, source, manifest.input_digests))
    return list({(i.dataset.name, i.dataset.digest): i for i in reversed(found)}.values())[::-1]


def _of_config(
    context: str, field: str, source: DataFields, digests: Mapping[str, str]
) -> DatasetInput:
    """Describe a dataset of the config; MLflow itself can load files and those of the hub."""
    match source.get("name"):
        case "files":
            paths = source["path"]
            name = ", ".join(Path(p).name for p in ([paths] if isinstance(paths, str) else paths))
            of_files = {k: v for k, v in digests.items() if k.startswith(f"{field}.path")}
            place = {"uri": paths if isinstance(paths, str) else ", ".join(paths)}
            return _input(context, name, digest_of(of_files), "local", place)
        case "hub":
            place = {"path": source["repo"], "revision": source["revision"]}
            place |= {"config_name": source.get("config"), "split": source.get("split")}
            return _input(context, source["repo"], digest_of(place), "hugging_face", place)
        case name:
            place = {k: v for k, v in source.items() if v is not None}
            title = " ".join(filter(None, (str(name), source.get("split"))))
            return _input(context, title, digest_of(place), "ratchet", place)


def _input(
    context: str, name: str, digest: str, source_type: str, source: DataFields
) -> DatasetInput:
    dataset = Dataset(name[:NAME_LENGTH], digest[:DIGEST_LENGTH], source_type, json.dumps(source))
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, context)])


def _at(config: DataFields, field: str) -> Any:
    value: Any = config
    for key in field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _sources_at(field: str, value: Any) -> Iterator[tuple[str, DataFields]]:
    """Yield the single datasets in a field: several in a list, and the parts of a mixture."""
    if isinstance(value, Mapping) and "parts" in value:
        yield from _sources_at(f"{field}.parts", value["parts"])
    elif isinstance(value, Mapping):
        yield field, value
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _sources_at(f"{field}.{number}.data", each.get("data"))
