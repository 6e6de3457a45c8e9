"""Rollout engines in processes of their own, which are restarted if they die."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from multiprocessing.connection import wait

from torch import Tensor

from training_core.engine.protocol import DividedModel
from training_core.errors import TransientError
from training_core.rollout.engine import Policy, claim_ids, generate_in_order, require_idle
from training_core.rollout.engine_messages import (
    Asleep,
    Ended,
    Finished,
    Loaded,
    RequestBlock,
    Sleep,
)
from training_core.rollout.engine_process import EngineHost, EngineProcess
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.rollout.transformers_engine import MAX_ROWS
from training_core.rollout.weight_sending import WeightSender, answer_of, raise_failure
from training_core.types import Prompt, Rollout

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts of all engines together; a fault that comes back more often is not mended by them.

Engines that end in one broadcast of weights count once.
"""

BLOCKS_AHEAD = 2
"""Blocks that an engine has at the same time: one is sampled, the next one waits."""


class SeparateEngines:
    """Spreads requests over rollout engines of one kind, each in a process of its own.

    Requests are cut into blocks in the order in which they are submitted, and an engine gets whole
    blocks, also again after a restart. Since a transformers batch has requests of one block only,
    neither the number of engines nor a restart changes a single bit of its rollouts, as long as an
    engine has as many threads. vLLM decides itself what it computes together, which can change the
    rounding.

    All engines get the same weights. A restarted engine gets them again from the same policy, and
    its digest must be the one of the last sync. An engine that has work and shows no progress
    within the limit of `EngineProcess` is restarted, too. None is restarted if the ranks of a
    training have divided the policy, because all of them would have to send it again.

    Args:
        spec: the engines.
        host: where they are started.
        engines: number of engines.
        weights: sends weights to them.
        block_rows: requests per block.

    Attributes:
        processes: of the engines, by number.
    """

    def __init__(
        self,
        spec: EngineSpec,
        host: EngineHost,
        engines: int = 1,
        *,
        weights: WeightSender | None = None,
        block_rows: int = MAX_ROWS,
    ) -> None:
        self.name = spec.kind
        self.policy_version = 0
        self.spec, self._host = spec, host
        self._block_rows = block_rows
        self._weights = weights or WeightSender()
        self._waiting: deque[RequestBlock] = deque()
        self._unfinished: dict[str, RolloutRequest] = {}
        self._asked: dict[
            str, RolloutRequest
        ] = {}  # by a number of its own, which no request had before
        self._numbers = count()
        self._synced: tuple[Policy, str] | None = None
        self._restarts = 0
        self.processes = [host.start(number, spec) for number in range(engines)]

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Put requests into the queue; see `RolloutEngine.submit`."""
        claim_ids(self._unfinished, requests)
        slim = [_slim(request, str(next(self._numbers))) for request in requests]
        self._asked |= {own.id: request for own, request in zip(slim, requests, strict=True)}
        size = self._block_rows
        self._waiting += [
            RequestBlock(tuple(slim[i : i + size])) for i in range(0, len(slim), size)
        ]

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Give blocks to the engines and yield rollouts; see `RolloutEngine.finished`."""
        while self._unfinished or any(process.blocks for process in self.processes):
            self._give_blocks()
            for number, process in self._with_news():
                answer = process.receive()
                if isinstance(answer, Ended):
                    self._replace(number, answer)
                elif isinstance(answer, Finished):
                    process.has_finished(answer.id)
                    # After a restart some of a block's rollouts come a second time.
                    if (request := self._asked.pop(answer.id, None)) is not None:
                        del self._unfinished[request.id]
                        yield request.id, replace(answer.rollout, prompt=request.prompt)
                else:
                    raise_failure(answer)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `generate_in_order`."""
        return generate_in_order(self, prompts, sampling, seeds)

    def load_weights(self, policy: Policy, version: int) -> str:
        """Send the weights to all engines; see `RolloutEngine.load_weights`.

        Returns:
            The digest of every engine, as one if they are equal.
        """
        require_idle(self._unfinished, version)
        self._synced = None  # an engine that dies now is restarted without weights
        numbers, digests = list(range(len(self.processes))), set[str]()
        while numbers:
            answers = self._weights.send(policy, version, [self.processes[n] for n in numbers])
            answered = dict(zip(numbers, answers, strict=True))
            digests |= {a.digest for a in answers if isinstance(a, Loaded)}
            ended = {n: a for n, a in answered.items() if isinstance(a, Ended)}
            if ended:
                _require_own_weights(policy, self._count_restart(ended))
            for number in ended:
                self._restart(number)
            numbers = list(ended)
        digest = "+".join(sorted(digests))
        self._synced, self.policy_version = (policy, digest), version
        return digest

    def sleep(self) -> None:
        """Let all engines free their memory; see `RolloutEngine.sleep`."""
        require_idle(self._unfinished, self.policy_version)
        if self.spec.sleeps:
            for process in self.processes:
                process.ask(Sleep())
            for process in self.processes:
                answer_of(process, Asleep)  # one that has ended is replaced at the next sync

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest of weights; see `RolloutEngine.digest_of`."""
        return self.spec.digest_of(weights)

    def close(self) -> None:
        """End the processes and free the shared memory."""
        for process in self.processes:
            process.close()
        self._weights.close()
        self._host.close()

    def _with_news(self) -> list[tuple[int, EngineProcess]]:
        """Wait for the next messages; return the engines that sent one or are silent too long."""
        patience = min(p.patience_seconds for p in self.processes if p.blocks)
        ready = wait([process.connection for process in self.processes], timeout=patience)
        return [
            (number, process)
            for number, process in enumerate(self.processes)
            if process.connection in ready or (process.blocks and not process.patience_seconds)
        ]

    def _give_blocks(self) -> None:
        while self._waiting:
            process = min(self.processes, key=lambda process: len(process.blocks))
            if len(process.blocks) >= BLOCKS_AHEAD:
                return
            process.give(self._waiting.popleft())

    def _replace(self, number: int, ended: Ended) -> None:
        """Start an ended engine again, with its weights and unfinished blocks.

        Raises:
            TransientError: if engines ended too often, or the policy has other weights meanwhile.
        """
        what = self._count_restart({number: ended})
        old, new = self.processes[number], self._restart(number)
        if self._synced is not None:
            policy, digest = self._synced
            _require_own_weights(policy, what)
            (answer,) = self._weights.send(policy, self.policy_version, [new])
            if isinstance(answer, Ended):
                new.blocks = old.blocks
                self._replace(number, answer)
                return
            if not isinstance(answer, Loaded) or answer.digest != digest:
                raise TransientError(
                    f"{what}\nIts successor needs the weights of sync {self.policy_version}, and "
                    "the policy has been trained since; start again from the last checkpoint"
                )
        for block in old.blocks:
            new.give(block)

    def _count_restart(self, ended: Mapping[int, Ended]) -> str:
        """Count one restart, and return what has happened to the engines of these numbers.

        Raises:
            TransientError: if there were too many.
        """
        self._restarts += 1
        what = "\n".join(
            f"rollout engine {number + 1} of {len(self.processes)} ({self.name}) {each.words}"
            for number, each in ended.items()
        )
        if self._restarts > MAX_RESTARTS:
            raise TransientError(
                f"after {MAX_RESTARTS} restarts of rollout engines another one ended: {what}\n"
                "Give the engines more memory, raise rollouts.placement.silence_seconds if they "
                "only need more time, or use the placement inline to see the error"
            )
        log.warning("%s; restart %d of at most %d", what, self._restarts, MAX_RESTARTS)
        return what

    def _restart(self, number: int) -> EngineProcess:
        self.processes[number].close()
        self.processes[number] = self._host.start(number, self.spec)
        return self.processes[number]


def _require_own_weights(policy: Policy, what: str) -> None:
    """Check that this process can send the weights again by itself.

    Raises:
        TransientError: if the other ranks would have to gather them, too.
    """
    if isinstance(policy, DividedModel):
        raise TransientError(
            f"{what}\nThe policy is divided among the workers, so its weights are sent only to all "
            "engines at once; start again from the last checkpoint"
        )


def _slim(request: RolloutRequest, name: str) -> RolloutRequest:
    """Return the request without what an engine does not need, which might not be picklable."""
    ids = request.prompt.input_ids
    prompt = Prompt(id="", messages=(), text="", input_ids=ids, columns={})
    return replace(request, id=name, prompt=prompt)
