from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from stages.configs.data_config import CafeDataConfig
from stages.configs.dpo_config import DpoConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.runtime.error_record import write_error
from stages.runtime.exit_codes import ENDINGS, ExitCode, code_of, ending_of
from stages.runtime.ray_cluster import JobInfo, JobStatus, RayCluster
from tasks.connections import Connections
from tasks.failures import failure_of
from tasks.refs import StageRef, ref_of
from tasks.registry import Registry
from tasks.registry_tasks import stage_ref_of
from tasks.stage_task import StageJob, request_for
from tasks.versions import ModelVersionRef, verify
from training_core.errors import (
    CanaryError,
    ConfigError,
    ConflictError,
    DataError,
    InputError,
    IntegrityError,
    MismatchError,
    NonFiniteError,
    StoppedError,
    StorageFullError,
    TransientError,
)

COST = {"seconds": 1.0}


@pytest.fixture
def connections(store) -> Connections:
    """Only the store is there; what is tested here asks nobody else."""
    nowhere = "http://127.0.0.1:1"
    return Connections(store, RayCluster(nowhere), Registry(nowhere, store))


@pytest.fixture
def refs(finish) -> dict[str, StageRef]:
    """A finished policy, reward model, dataset and evaluation."""
    kinds = ("policy", "reward_model", "dataset", "evaluation")
    made = {kind: finish(f"made-{kind}", kind=kind, cost=COST) for kind in kinds}
    return {kind: ref_of(manifest, kind, is_reused=True) for kind, manifest in made.items()}


# ------------------------------------------------------------------------------- inputs


def dpo(**inputs: StageRef) -> StageJob:
    return StageJob("dpo_1", DpoConfig(), inputs, "tiny")


def evaluation(**inputs: StageRef) -> StageJob:
    return StageJob("evaluation", EvaluationConfig(prompts=CafeDataConfig()), inputs, "tiny")


def test_inputs_that_fit_are_found(refs, connections):
    policy, data, judge = refs["policy"], refs["dataset"], refs["reward_model"]
    request = request_for(dpo(policy=policy, reference=policy, dataset=data), connections)
    assert set(request.inputs) == {"policy", "reference", "dataset"}
    job = evaluation(policy=policy, baseline=policy, policy_dpo_1=policy, reward_model=judge)
    assert "policy_dpo_1" in request_for(job, connections).inputs


def test_an_input_that_the_stage_does_not_take_names_the_nearest(refs, connections):
    both = {"policy": refs["policy"], "reference": refs["policy"]}
    with pytest.raises(ConfigError, match="takes no input 'datset'; did you mean 'dataset'"):
        request_for(dpo(**both, datset=refs["dataset"]), connections)
    with pytest.raises(ConfigError, match="takes no input 'policy_old'; did you mean 'policy'"):
        request_for(dpo(**both, policy_old=refs["policy"]), connections)
    with pytest.raises(ConfigError, match=r"'x'; it takes: policy, baseline, .*, policy_<name>"):
        job = evaluation(policy=refs["policy"], baseline=refs["policy"], x=refs["policy"])
        request_for(job, connections)


@pytest.mark.parametrize(
    ("role", "given", "expected"),
    [
        ("policy", "reward_model", "policy"),
        ("reference", "dataset", "policy"),
        ("dataset", "policy", "dataset"),
        ("dataset", "evaluation", "dataset"),
    ],
)
def test_an_input_of_another_kind_is_refused(refs, connections, role, given, expected):
    inputs = {"policy": refs["policy"], "reference": refs["policy"], role: refs[given]}
    message = f"expected a {expected} as input '{role}', found the {given} of step '{given}'; "
    with pytest.raises(ConfigError, match=re.escape(message)):
        request_for(dpo(**inputs), connections)


def test_a_reward_model_role_takes_no_policy(refs, connections):
    policy = refs["policy"]
    with pytest.raises(ConfigError, match="expected a reward_model as input 'reward_model'"):
        request_for(evaluation(policy=policy, baseline=policy, reward_model=policy), connections)


# ---------------------------------------------------------------- a stage that was made anew


def version_of(manifest, path: Path) -> ModelVersionRef:
    return ModelVersionRef(
        name="tiny.policy",
        version=1,
        stage=manifest.stage,
        step=manifest.step,
        stage_key=manifest.key,
        digest=manifest.digest,
        run_id="",
        path=path,
    )


def test_a_version_keeps_its_own_bytes_when_its_stage_was_made_anew(finish, store, connections):
    key = "k" * 64
    old = finish("sft", seed=1, key=key, cost=COST)
    version = version_of(old, store.artifact_dir(old))
    store.set_aside("sft", key, once_for="flow-2")
    new = finish("sft", seed=2, key=key, cost=COST, attempt="a2")
    assert old.digest != new.digest

    ref = stage_ref_of(version, connections)

    assert (ref.key, ref.digest) == (key, old.digest)
    request = request_for(dpo(policy=ref, reference=ref), connections)
    assert request.inputs["policy"] == str(store.artifact_dir(old))
    fresh = ref_of(new, "sft", is_reused=False)
    request = request_for(dpo(policy=fresh, reference=ref), connections)
    assert request.inputs["policy"] == str(store.artifact_dir(new))
    verify(store, version)  # so that it can be rolled back to


def test_a_version_whose_bytes_are_nowhere_is_an_integrity_error(finish, store, connections):
    version = version_of(finish("sft", seed=1, cost=COST), store.root)
    lost = version.model_copy(update={"digest": "0" * 64})

    with pytest.raises(IntegrityError, match="damaged in or gone from the store"):
        stage_ref_of(lost, connections)
    with pytest.raises(IntegrityError, match="found none whose files are all there"):
        verify(store, lost)


# ---------------------------------------------------------------------- how attempts end


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [
        (ExitCode.DISK_FULL, StorageFullError),  # a full disk takes no error.json
        (ExitCode.BAD_INPUT, InputError),
        (1, InputError),
        (ExitCode.TRANSIENT, TransientError),
        (137, TransientError),
        (None, TransientError),
    ],
)
def test_an_end_without_a_record_is_judged_by_its_exit_code(store, exit_code, expected):
    failure = failure_of(store.attempt("sft", "k", "a1"), JobInfo(JobStatus.FAILED, exit_code))
    assert type(failure) is expected


def test_every_error_of_a_stage_reaches_the_task_as_what_the_table_says():
    """The code that a process ends with leads to the error that its task raises."""
    expected = {
        ConfigError("x"): (20, InputError),
        DataError("x"): (20, InputError),
        IntegrityError("x"): (20, InputError),
        NonFiniteError("x"): (30, NonFiniteError),
        MismatchError("x"): (31, MismatchError),
        CanaryError("x"): (32, CanaryError),
        StorageFullError("x"): (40, StorageFullError),
        OSError(errno.ENOSPC, "x"): (40, StorageFullError),
        OSError(errno.EDQUOT, "x"): (40, StorageFullError),
        OSError(errno.EIO, "x"): (75, TransientError),
        TransientError("x"): (75, TransientError),
        ConflictError("x"): (75, TransientError),
        StoppedError("x"): (143, TransientError),
    }
    for error, (code, kind) in expected.items():
        ending = ending_of(code_of(error))
        assert ending is not None
        assert (ending.code, ending.becomes) == (code, kind), error
    assert [e.code for e in ENDINGS] == list(ExitCode)
    assert ending_of(137) is None


def test_an_end_with_a_record_is_judged_by_that(store):
    attempt = store.attempt("sft", "k", "a1")
    write_error(attempt, ExitCode.BAD_INPUT, DataError("row 3"))
    failure = failure_of(attempt, JobInfo(JobStatus.FAILED, 137))
    assert type(failure) is InputError
    assert "DataError: row 3" in str(failure)
