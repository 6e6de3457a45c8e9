"""Times of the registry and of `ratchet plan` when a lifecycle has grown old.

    python -m benchmarks registry [--versions 100 10000] [--repeats 5]

For each size, a real MLflow server on sqlite gets that many versions of one policy with their runs,
and a ledger of 200 promotions, and a store gets as many manifests. Everything is then asked over
HTTP, as flows do. The versions and runs are written to the database without the server, to save
time. Prints a Markdown table of medians with the range, in seconds.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from mlflow.store.model_registry.dbmodels.models import SqlModelVersion, SqlModelVersionTag
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as ModelStore
from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as TrackingStore

from flows import full_rlhf
from flows.cli.plan import Plan
from flows.config.presets import load_config
from stages.runtime.manifest import Manifest, manifest_text
from stages.runtime.ray_cluster import RayCluster
from stages.runtime.store import Store
from tasks.connections import Connections
from tasks.gate import Verdict
from tasks.locks import claim
from tasks.registry import ATTEMPT, FlowRun, Registry
from tasks.registry_tasks import champion_of, read_champion
from tasks.versions import source_of, tags_of
from tests.tasks.real_services import MlflowServer, finish_stage

LIFECYCLE, PROMOTIONS = "tiny", 200
POLICY = f"{LIFECYCLE}.policy"
EVIDENCE = Verdict(passed=True, reasons=(), level=0.025).model_dump_json()


def run(arguments: Namespace) -> None:
    """Measure and print."""
    columns = {size: _measured(size, arguments.repeats) for size in arguments.versions}
    print("| what |" + "".join(f" {size:,} versions |" for size in columns))
    print("|---|" + "---|" * len(columns))
    for row in next(iter(columns.values())):
        print(f"| {row} |" + "".join(f" {column[row]} |" for column in columns.values()))


def _measured(size: int, repeats: int) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        server = MlflowServer(Path(folder))
        store = Store(Path(folder, "store"))
        sample = finish_stage(store, "sft")
        _fill_store(store, sample, size)
        database = f"sqlite:///{folder}/mlflow.db"
        _fill_models(database, sample, size)
        _fill_runs(database, store, sample, size)
        server.start()
        try:
            actions = _actions(Connections(store, RayCluster(), Registry(server.uri, store)))
            return {name: _times(action, repeats) for name, action in actions.items()}
        finally:
            server.stop()


def _fill_store(store: Store, sample: Manifest, size: int) -> None:
    for number in range(1, size + 1):
        manifest = sample.model_copy(update={"key": _key(number)})
        path = store.stage_dir(manifest.stage, manifest.key) / "manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text(manifest_text(manifest))
        with claim(store.root, LIFECYCLE, manifest.stage, manifest.key, step=manifest.step):
            pass


def _fill_runs(uri: str, store: Store, sample: Manifest, size: int) -> None:
    artifacts = (store.root / "mlflow" / LIFECYCLE).as_uri()
    database = TrackingStore(uri, artifacts)
    experiment = int(database.create_experiment(LIFECYCLE, artifacts))
    with database.ManagedSessionMaker() as session:
        for number in range(1, size + 1):
            run = SqlRun(
                run_uuid=f"{number:032x}",
                name=sample.step,
                status="FINISHED",
                start_time=number,
                lifecycle_stage="active",
                artifact_uri=f"{artifacts}/{number}",
                experiment_id=experiment,
            )
            tags = {"stage_key": _key(number), "stage": sample.stage, "step": sample.step}
            tags |= {ATTEMPT: sample.attempt, "kind": sample.kind, "digest": sample.digest}
            tags |= {"flow_run_id": str(number // 10)}
            session.add(run)
            session.add_all(
                SqlTag(run_uuid=run.run_uuid, key=key, value=value) for key, value in tags.items()
            )


def _fill_models(uri: str, sample: Manifest, size: int) -> None:
    database = ModelStore(uri)

    def add(name: str, count: int, tags: Callable[[int], Mapping[str, str]]) -> None:
        database.create_registered_model(name)
        with database.ManagedSessionMaker() as session:
            for number in range(1, count + 1):
                session.add(SqlModelVersion(name=name, version=number, source=source(number)))
                for key, value in tags(number).items():
                    tag = {"name": name, "version": number, "key": key, "value": value}
                    session.add(SqlModelVersionTag(**tag))

    def source(number: int) -> str:
        return source_of(
            sample.model_copy(update={"key": _key(number)}), Path(f"/{number}").as_uri()
        )

    def version(number: int) -> Mapping[str, str]:
        return tags_of(sample.model_copy(update={"key": _key(number)}), sample.step)

    def promotion(number: int) -> Mapping[str, str]:
        return {
            "target": str(number * size // PROMOTIONS or 1),
            "based_on": str(number - 1),
            "verdict": "passed",
            "evidence": EVIDENCE,
            "decided_by": "full-rlhf",
            "reason": "full-rlhf: beats the champion",
            "decision": str(number),
        }

    add(POLICY, size, version)
    add(f"{POLICY}.promotions", PROMOTIONS, promotion)
    database.set_registered_model_alias(POLICY, sample.step, str(size))


def _actions(connections: Connections) -> Mapping[str, Callable[[], object]]:
    registry, store = connections.registry, connections.store
    made = iter(range(1000))

    def fresh() -> Manifest:
        return finish_stage(store, "sft", seed=next(made), key=_key(-1 - next(made)))

    known = fresh()
    registry.register(known, lifecycle=LIFECYCLE)
    ready = [fresh() for _ in range(40)]

    def register() -> None:
        """Register the first result of a flow run, which has no run yet either."""
        flow_run = FlowRun(str(len(ready)), "full-rlhf", LIFECYCLE, time.time())
        registry.register(ready.pop(), lifecycle=LIFECYCLE, flow_run=flow_run)

    def plan() -> None:
        _, champion = champion_of(connections, POLICY)
        full_rlhf.steps(Plan(load_config("tiny"), connections, champion))

    return {
        "resolve an alias": lambda: registry.models.resolve(f"models:/{POLICY}@sft"),
        "read the champion": lambda: read_champion.fn(connections, POLICY),
        "register a new result": register,
        "register a known result": lambda: registry.register(known, lifecycle=LIFECYCLE),
        "`plan`, without its imports": plan,
    }


def _key(number: int) -> str:
    """Return a key; keys differ in their first digits, as digests do."""
    return f"{number & (2**256 - 1):064x}"[::-1]


def _times(action: Callable[[], object], repeats: int) -> str:
    taken = []
    for _ in range(repeats + 1):  # the first fills caches
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    taken = taken[1:]
    return f"{median(taken):.3f} ({min(taken):.3f} to {max(taken):.3f})"
