"""The workers of one stage as Ray actors."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

from stages.configs.block import ResourcesConfig
from stages.runtime.exit_codes import ExitCode
from stages.runtime.forked_stage import ForkedStage
from stages.runtime.worker_processes import IN_RAY_JOB, free_port, rank_environment, start_stage
from training_core.errors import StoppedError

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

log = logging.getLogger("ratchet")
P = ParamSpec("P")
T = TypeVar("T")


class RemoteMethod(Protocol[P, T]):
    """A method of a remote actor."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[T]:
        """Call it; `ray.get` waits for the result."""
        ...


class WorkerHandle(Protocol):
    """A remote `WorkerActor`."""

    place: RemoteMethod[[], tuple[str, int]]
    start: RemoteMethod[[str, str, Mapping[str, str]], None]
    poll: RemoteMethod[[], int | None]
    send: RemoteMethod[[int], None]


class RayWorkerGroup:
    """Workers of one stage on the Ray cluster that runs this process, each in its own bundle.

    Ray places the workers, but does not restart them.

    Args:
        request: argument of `python -m stages`.
        resources: resources of each worker.
        stop: set if the stage must stop; the workers are then not started.
    """

    def __init__(self, request: Path, resources: ResourcesConfig, stop: Event) -> None:
        from ray.util.placement_group import placement_group

        join_cluster()
        bundle = _bundle(resources)
        self._group = placement_group([bundle] * resources.num_workers, strategy="PACK")
        while not self._group.wait(timeout_seconds=1):
            if stop.is_set():
                raise StoppedError("stopped while waiting for free resources on the cluster")
        self._actors = [self._place(bundle, rank) for rank in range(resources.num_workers)]
        self._start(request)

    def _place(self, bundle: Mapping[str, float], rank: int) -> WorkerHandle:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = ray.remote(max_restarts=0, max_task_retries=0)(WorkerActor).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory"),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank
            ),
        )
        return cast(WorkerHandle, actor.remote())

    def _start(self, request: Path) -> None:
        import ray

        address, port = ray.get(self._actors[0].place.remote())
        world_size = len(self._actors)
        started = [
            # Ray shows each worker only its own GPUs, so its GPU always has index 0.
            actor.start.remote(
                str(request),
                str(Path.cwd()),
                # It may place further actors, e.g. rollout engines.
                rank_environment(rank, world_size, address, port, local_rank=0)
                | {IN_RAY_JOB: "1", "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
            )
            for rank, actor in enumerate(self._actors)
        ]
        ray.get(started)

    def poll(self) -> Sequence[int | None]:
        """Return the exit codes so far; TRANSIENT for a worker whose node is lost."""
        return [_result_or(actor.poll.remote, int(ExitCode.TRANSIENT)) for actor in self._actors]

    def send(self, number: int) -> None:
        """Send a signal to every running worker."""
        for actor in self._actors:
            _result_or(partial(actor.send.remote, number), None)

    def close(self) -> None:
        """Kill the remaining workers and free the bundles."""
        import ray
        from ray.util.placement_group import remove_placement_group

        self.send(signal.SIGKILL)
        for actor in self._actors:
            ray.kill(cast("ActorHandle[WorkerActor]", actor))
        remove_placement_group(self._group)
        ray.shutdown()


def join_cluster() -> None:
    """Connect to the Ray cluster that runs this process, unless it is connected."""
    import ray

    if ray.is_initialized():
        return
    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(address="auto", log_to_driver=True)
    signal.signal(signal.SIGTERM, on_sigterm)  # because Ray installs a handler that exits at once


def _result_or(call: Callable[[], ObjectRef[T]], if_lost: T) -> T:
    """Return the result of a remote call, or `if_lost` if the node is gone."""
    import ray
    from ray.exceptions import RayActorError

    try:
        return ray.get(call())
    except RayActorError as error:
        log.warning("a worker is lost: %s", error)
        return if_lost


class WorkerActor:
    """Runs in a bundle and starts the process of one worker."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | ForkedStage | None = None

    def place(self) -> tuple[str, int]:
        """Return the address of this machine and a free port on it."""
        import ray

        return ray.util.get_node_ip_address(), free_port()

    def start(self, request: str, folder: str, environment: Mapping[str, str]) -> None:
        """Start the worker in the working directory of the job."""
        os.chdir(folder)
        self._process = start_stage(Path(request), environment)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs, or before it is started."""
        return None if self._process is None else self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _bundle(resources: ResourcesConfig) -> dict[str, float]:
    wanted = {
        "CPU": resources.num_cpus,
        "GPU": resources.num_gpus,
        "memory": (resources.memory_gib or 0) * 2**30,
    }
    return {name: amount for name, amount in wanted.items() if amount}
