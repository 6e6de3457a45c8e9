"""Rollout engines as Ray actors.

The engines know nothing of Ray: an actor starts the process of one engine, as a stage does on its
own machine, and passes messages on.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch

from stages.configs.placement_config import ApartConfig
from stages.runtime.ray_workers import RemoteMethod, join_cluster
from training_core.errors import StoppedError, TransientError
from training_core.rollout.engine_messages import Ended, FromEngine
from training_core.rollout.engine_process import EngineProcess
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.local_engines import LocalHost
from training_core.rollout.weight_channels import machine_id

if TYPE_CHECKING:
    from ray.actor import ActorHandle

log = logging.getLogger("ratchet")

SECONDS_TO_END = 10.0
SECONDS_FOR_A_PLACE = 1800.0
"""Limit of the wait for the engines' resources, while the workers of the stage hold theirs."""


class EngineHandle(Protocol):
    """A remote `EngineActor`."""

    start: RemoteMethod[[str, EngineSpec, int], str]
    send: RemoteMethod[[object], None]
    receive: RemoteMethod[[], list[FromEngine]]
    last_words: RemoteMethod[[], str]


class RayEngineHost:
    """Places rollout engines on the Ray cluster that runs this process, each in its own bundle.

    Args:
        placement: number of engines, and the resources of each.
        should_stop: whether the stage shall stop; it then no longer waits for resources.

    Attributes:
        address: of this machine, for engines on others.
    """

    def __init__(self, placement: ApartConfig, should_stop: Callable[[], bool]) -> None:
        import ray
        from ray.util.placement_group import placement_group

        join_cluster()
        self.address: str = ray.util.get_node_ip_address()
        self._placement = placement
        self._bundle = {"CPU": placement.num_cpus}
        if placement.num_gpus:
            self._bundle["GPU"] = placement.num_gpus
        self._actors: list[ActorHandle[EngineActor]] = []
        self._receiving: list[threading.Thread] = []
        # Threads that still wait for Ray when the interpreter ends would crash it.
        atexit.register(self._end_all)
        self._group = placement_group([self._bundle] * placement.engines, strategy="PACK")
        deadline = time.monotonic() + SECONDS_FOR_A_PLACE
        while not self._group.wait(timeout_seconds=1):
            if should_stop():
                raise StoppedError("stopped while waiting for resources of rollout engines")
            if time.monotonic() > deadline:
                raise TransientError(
                    f"expected {placement.engines} x {self._bundle} for rollout engines within "
                    f"{SECONDS_FOR_A_PLACE:g} s, free are {ray.available_resources()}; lower "
                    "rollouts.placement.engines or its resources, or add nodes"
                )

    def start(self, number: int, spec: EngineSpec) -> EngineProcess:
        """Start an engine in the bundle of its number; see `EngineHost`.

        Raises:
            TransientError: if its node is lost.
        """
        import ray
        from ray.exceptions import RayActorError
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote = ray.remote(max_restarts=0, max_task_retries=0)(EngineActor)
        actor = remote.options(
            max_concurrency=3,  # one thread waits for messages of the engine, while another sends
            num_cpus=self._bundle["CPU"],
            num_gpus=self._bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            ),
        ).remote()
        engine = cast(EngineHandle, actor)
        threads = max(1, int(self._placement.num_cpus))
        try:
            machine = ray.get(engine.start.remote(str(Path.cwd()), spec, threads))
        except RayActorError as error:
            raise TransientError(f"a rollout engine could not be started: {error}") from error
        ours, theirs = Pipe()
        self._actors.append(cast("ActorHandle[EngineActor]", actor))
        handle = RayHandle(self._actors[-1])
        threading.Thread(target=_send_all, args=(theirs, engine), daemon=True).start()
        receiving = threading.Thread(
            target=_receive_all, args=(theirs, engine, handle), daemon=True
        )
        receiving.start()
        self._receiving.append(receiving)
        return EngineProcess(
            ours,
            handle,
            is_here=machine == machine_id(),
            silence_seconds=self._placement.silence_seconds,
        )

    def close(self) -> None:
        """Free the bundles."""
        from ray.util.placement_group import remove_placement_group

        self._end_all()
        atexit.unregister(self._end_all)
        remove_placement_group(self._group)

    def _end_all(self) -> None:
        """End all actors, and with them the threads that wait for their messages."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        for thread in self._receiving:
            thread.join(SECONDS_TO_END)


class RayHandle:
    """The process of an engine, whose actor this is.

    Args:
        actor: of the engine.
    """

    def __init__(self, actor: ActorHandle[EngineActor]) -> None:
        self._actor = actor

    def last_words(self) -> str:
        """Tell how the process ended; see `ProcessHandle`."""
        import ray
        from ray.exceptions import RayActorError

        try:
            return ray.get(cast(EngineHandle, self._actor).last_words.remote())
        except RayActorError as error:
            return f"was lost with its actor or node: {error}"

    def kill(self) -> None:
        """Kill the actor, with which its process ends."""
        import ray

        ray.kill(self._actor)

    def close(self) -> None:
        """Kill the actor."""
        self.kill()


def _send_all(connection: Connection, engine: EngineHandle) -> None:
    """Pass on what the stage sends, until it closes its end."""
    import ray
    from ray.exceptions import RayError

    while True:
        try:
            ray.get(engine.send.remote(connection.recv()))
        except (EOFError, OSError, RayError):
            return


def _receive_all(connection: Connection, engine: EngineHandle, handle: RayHandle) -> None:
    """Pass on what the engine sends, and how it has ended."""
    import ray
    from ray.exceptions import RayActorError

    try:
        while messages := ray.get(engine.receive.remote()):
            for message in messages:
                connection.send(message)
    except RayActorError:
        log.debug("an actor of a rollout engine has ended")
    except OSError:
        return  # the stage has closed its end
    with suppress(OSError):
        connection.send(Ended(handle.last_words()))


class EngineActor:
    """Runs in a bundle: starts the process of one engine there, and passes messages on."""

    _host: LocalHost
    _process: EngineProcess

    def start(self, folder: str, spec: EngineSpec, threads: int) -> str:
        """Start the engine in the working directory of the job; return the id of the machine."""
        os.chdir(folder)
        torch.set_num_threads(threads)  # which the host gives to its only engine
        # The stage watches for silence, not this actor.
        self._host = LocalHost(1, silence_seconds=inf, gpus=spec.tensor_parallel_size)
        self._process = self._host.start(0, spec)
        return machine_id()

    def send(self, message: object) -> None:
        """Pass a message on to the engine."""
        self._process.send(message)

    def receive(self) -> list[FromEngine]:
        """Wait for the next messages of the engine; none if it has ended."""
        connection, messages = self._process.connection, list[FromEngine]()
        with suppress(EOFError, OSError):  # its last message may be an error of the engine
            messages.append(connection.recv())
            while connection.poll():
                messages.append(connection.recv())
        return messages

    def last_words(self) -> str:
        """Tell how the process of the engine ended."""
        return self._process.handle.last_words()
