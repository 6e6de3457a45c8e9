"""The interface of rollout engines, and checks that they sample from the trainer's policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from training_core.data.batching import collate
from training_core.engine.protocol import DividedModel
from training_core.errors import MismatchError
from training_core.models.parts import has_adapter, unwrapped
from training_core.models.sharding import computing_device, is_divided, whole
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.types import Batch, Prompt, Rollout

Policy: TypeAlias = nn.Module | DividedModel
"""What an engine takes weights from: a model, or one that is gathered a few weights at a time."""


class RolloutEngine(Protocol):
    """Samples responses; holds its own copy of the policy's weights.

    Requests go in through `submit`, rollouts come out of `finished` in any order. `generate` does
    both for a list of prompts.
    """

    name: str
    policy_version: int

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Accept requests.

        Raises:
            ValueError: if the id of one is the id of an unfinished request.
        """
        ...

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Sample, and yield id and rollout of each request, until none is unfinished.

        Requests may be submitted meanwhile. If the caller stops early, the next call goes on.
        """
        ...

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `generate_in_order`."""
        ...

    def load_weights(self, policy: Policy, version: int) -> str:
        """Copy the weights of `policy`, and set `policy_version` to `version`.

        Returns:
            The digest of the weights that the engine has afterwards, read from its own layers.

        Raises:
            ValueError: if a request is unfinished; a rollout is sampled under one version.
        """
        ...

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest that `load_weights` returns if the engine has these weights."""
        ...

    def sleep(self) -> None:
        """Free what the engine does not need until the next `load_weights`.

        Raises:
            ValueError: if a request is unfinished.
        """
        ...

    def close(self) -> None:
        """Free the resources of the engine."""
        ...


def generate_in_order(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    seeds: Sequence[int],
) -> list[Rollout]:
    """Sample one response per prompt, and return them in the order of the prompts.

    Args:
        engine: without unfinished requests.
        prompts: repeat a prompt to get a group.
        sampling: parameters of sampling.
        seeds: one per prompt; the same seed, prompt and weights give the same response.
    """
    requests = [
        RolloutRequest(str(number), prompt, sampling, seed)
        for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    engine.submit(requests)
    rollouts = dict(engine.finished())
    return [rollouts[request.id] for request in requests]


def claim_ids(
    unfinished: MutableMapping[str, RolloutRequest], requests: Sequence[RolloutRequest]
) -> None:
    """Add `requests` to the unfinished ones.

    Raises:
        ValueError: if an id is there already.
    """
    for request in requests:
        if request.id in unfinished:
            raise ValueError(
                f"expected a new request id, found '{request.id}', whose rollout is not finished; "
                "give every request an id of its own"
            )
        unfinished[request.id] = request


def require_idle(unfinished: MutableMapping[str, RolloutRequest], version: int) -> None:
    """Check that no request would get weights of two versions.

    Raises:
        ValueError: if there are unfinished requests.
    """
    if unfinished:
        raise ValueError(
            f"expected no unfinished request at weight sync {version}, found {len(unfinished)}; a "
            "rollout is sampled under one version, so take them all from `finished` first"
        )


def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a Hugging Face model in the form of a checkpoint.

    Tied weights are yielded once, and adapters are merged into their base weights. Weights that the
    ranks have divided are gathered a few at a time, unless an adapter must be merged into them.
    """
    if isinstance(policy, DividedModel):
        if not has_adapter(policy.model):
            yield from policy.weights()
            return
        with policy.whole() as model:
            yield from named_weights(model)
    elif has_adapter(policy):
        from training_core.models.adapters import merged_state  # noqa: PLC0415 - imports peft

        yield from _once(merged_state(unwrapped(policy)).items())
    else:
        for name, parameter in _once(policy.named_parameters()):
            yield name, whole(parameter.detach())


def _once(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the first name of each tensor."""
    seen: set[int] = set()
    for name, tensor in named:
        place = id(tensor) if is_divided(tensor) else tensor.data_ptr()
        if place not in seen:
            seen.add(place)
            yield name, tensor


def device_of(policy: Policy) -> torch.device:
    """Return the device on which a policy computes; its parts may be in CPU memory."""
    if isinstance(policy, DividedModel):
        return policy.device
    return computing_device(next(policy.parameters()))


def sync(engine: RolloutEngine, policy: Policy, version: int) -> None:
    """Send the policy's weights to the engine; compare digests of the policy and the engine.

    That shows that the engine has the weights. `logprob_gap` shows that it uses them correctly.

    Args:
        engine: engine that receives the weights.
        policy: the trainer's model; every rank that has a part of it must call this.
        version: step of the controller at which the policy has these weights; part of every later
            rollout.

    Raises:
        MismatchError: if the engine's digest differs.
    """
    expected = engine.digest_of(named_weights(policy))
    found = engine.load_weights(policy, version)
    if found != expected:
        raise MismatchError(
            f"weight sync {version}: the {engine.name} engine has weights of digest {found[:12]}, "
            f"the trainer has {expected[:12]}; another rollouts.engine may receive them all"
        )


@dataclass(frozen=True)
class LogprobGap:
    """Distance of log-probabilities between engine and trainer, on sampled tokens, in nats."""

    mean: float
    largest: float


def gap_between(logprobs: Tensor, sampler_logprobs: Tensor) -> LogprobGap:
    """Compare log-probabilities of the trainer with those of the engine, both of any shape."""
    gap = (logprobs - sampler_logprobs).abs()
    return LogprobGap(float(gap.mean()), float(gap.max()))


@torch.no_grad()
def logprob_gap(
    rollouts: Sequence[Rollout],
    trainer_logprobs: Callable[[Batch], Tensor],
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
) -> LogprobGap:
    """Compare the log-probabilities in rollouts with those that the trainer computes.

    Args:
        rollouts: B rollouts.
        trainer_logprobs: returns those of a batch, [B, T], at the temperature of the sampling.
        pad_id: token id for padding; any id is valid.
        device: where the trainer's model computes.
    """
    batch = collate([r.example() for r in rollouts], pad_id, device)
    ours = trainer_logprobs(batch)[batch.loss_mask].cpu()
    return gap_between(ours, torch.tensor([p for r in rollouts for p in r.logprobs]))


def require_same_policy(gap: LogprobGap, *, limit: float, engine: RolloutEngine) -> None:
    """Stop if trainer and sampler disagree.

    Raises:
        MismatchError: if the mean gap is above `limit` nats.
    """
    if not gap.mean <= limit:
        raise MismatchError(
            f"after weight sync {engine.policy_version} the {engine.name} engine's "
            f"log-probabilities differ from the trainer's by {gap.mean:.4f} nats on average "
            f"(largest {gap.largest:.4f}), the limit is {limit}; the engine has other weights, or "
            "computes in a lower precision; raise logprob_gap_limit only in the second case"
        )
