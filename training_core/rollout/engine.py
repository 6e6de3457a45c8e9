"""The interface of rollout engines, and checks that they sample from the trainer's policy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from training_core.data.batching import collate
from training_core.errors import MismatchError
from training_core.models.causal_lm import logprobs
from training_core.models.parts import has_adapter, unwrapped
from training_core.types import Prompt, Rollout


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling: the whole distribution at `temperature`, without top-k or top-p.

    With truncated sampling the samples come from another policy than the one that the trainer
    scores (TRL#6789). A temperature of 0 is greedy.
    """

    max_response_tokens: int
    temperature: float = 1.0


class RolloutEngine(Protocol):
    """Samples responses; holds its own copy of the policy's weights."""

    name: str
    policy_version: int

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt.

        Args:
            prompts: repeat a prompt to get a group.
            sampling: parameters of sampling.
            seeds: one per prompt; the same seed, prompt and weights give the same response.
        """
        ...

    def load_weights(self, policy: nn.Module, version: int) -> str:
        """Copy the weights of `policy`, and set `policy_version` to `version`.

        Returns:
            The fingerprint of the received weights.
        """
        ...

    def close(self) -> None:
        """Free the resources of the engine."""
        ...


def fingerprint(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of names, shapes, dtypes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def named_weights(policy: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the weights of a Hugging Face model in the form of a checkpoint.

    Tied weights are returned once, and adapters are merged into their base weights.
    """
    if has_adapter(policy):
        from training_core.models.adapters import merged_state  # noqa: PLC0415 - imports peft

        named = merged_state(unwrapped(policy)).items()
    else:
        named = [(name, parameter.data) for name, parameter in policy.named_parameters()]
    seen: set[int] = set()
    weights = []
    for name, tensor in named:
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            weights.append((name, tensor))
    return weights


def sync(engine: RolloutEngine, policy: nn.Module, version: int) -> None:
    """Send the policy's weights to the engine; compare fingerprints of sent and received weights.

    That checks the transfer. `logprob_gap` checks what the engine computes with the weights.

    Args:
        engine: engine that receives the weights.
        policy: the trainer's model.
        version: step of the controller at which the policy has these weights; part of every later
            rollout.

    Raises:
        MismatchError: if the engine's fingerprint differs.
    """
    expected = fingerprint(named_weights(policy))
    found = engine.load_weights(policy, version)
    if found != expected:
        raise MismatchError(
            f"weight sync {version}: the {engine.name} engine received {found[:12]}, "
            f"the trainer sent {expected[:12]}"
        )


@dataclass(frozen=True)
class LogprobGap:
    """Distance of log-probabilities between engine and trainer, on sampled tokens, in nats."""

    mean: float
    largest: float


@torch.no_grad()
def logprob_gap(
    policy: nn.Module,
    rollouts: Sequence[Rollout],
    trainer_logprobs: Tensor | None,
    *,
    temperature: float,
    pad_id: int,
) -> LogprobGap:
    """Compare the log-probabilities in rollouts with those of the trainer.

    Args:
        policy: the trainer's model.
        rollouts: B of them.
        trainer_logprobs: [B, T] if already computed, else None.
        temperature: temperature of the sampling.
        pad_id: token id for padding; any id is valid.
    """
    device = next(policy.parameters()).device
    batch = collate([r.example() for r in rollouts], pad_id, device)
    if trainer_logprobs is None:
        trainer_logprobs = logprobs(policy, batch, temperature=temperature)
    theirs = torch.tensor([p for r in rollouts for p in r.logprobs])
    gap = (trainer_logprobs[batch.loss_mask].cpu() - theirs).abs()
    return LogprobGap(float(gap.mean()), float(gap.max()))


def require_same_policy(gap: LogprobGap, *, limit: float, engine: RolloutEngine) -> None:
    """Stop if trainer and sampler disagree.

    Raises:
        MismatchError: if the mean gap is above `limit` nats.
    """
    if not gap.mean <= limit:
        raise MismatchError(
            f"after weight sync {engine.policy_version} the {engine.name} engine's "
            f"log-probabilities differ from the trainer's by {gap.mean:.4f} nats on average "
            f"(largest {gap.largest:.4f}), allowed are {limit}; the engine holds other weights, or "
            "computes in a lower precision: raise logprob_gap_limit only if it is that"
        )
