"""What a rollout engine is asked for: sampling parameters, and requests for single rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from training_core.types import Prompt


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling, with the same meaning in every rollout engine.

    The logits are divided by the temperature. Then tokens are removed, in this order: by `min_p`,
    `top_k` and `top_p`, each on the distribution that the one before it left. The rest is
    renormalised, and one token is drawn from it.

    Attributes:
        max_response_tokens: limit of a response.
        temperature: 0 is greedy: the most likely token, whatever the other parameters are.
        top_p: keep the fewest most likely tokens whose probabilities sum up to this; 1 keeps all.
        top_k: keep the k most likely tokens, and those that are equally likely; None keeps all.
        min_p: keep tokens with at least this share of the largest probability; 0 keeps all.
        stop: texts; a response ends with the token that completes one of them.
        stop_tokens: tokens of the vocabulary that end a response, beside the end token.
    """

    max_response_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every token can be drawn, with its probability at `temperature`.

        Otherwise the responses come from another distribution than the one that a trainer scores.
        """
        is_untruncated = self.top_p == 1.0 and self.top_k is None and self.min_p == 0.0
        return self.temperature > 0 and is_untruncated


@dataclass(frozen=True)
class RolloutRequest:
    """A request for one rollout.

    Attributes:
        id: unique among the unfinished requests of an engine.
        prompt: the prompt.
        sampling: parameters of sampling.
        seed: the same seed, prompt, sampling and weights give the same response.
    """

    id: str
    prompt: Prompt
    sampling: Sampling
    seed: int
