"""Where a response ends: at the end token, at a stop token or after a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from training_core.data.chat import decode, eos_id
from training_core.errors import ConfigError
from training_core.rollout.sampling import Sampling
from training_core.types import Prompt, Rollout

SPARE_TOKENS = 8
"""Tokens before a stop string that are decoded with it, because the first one may lose a space."""


class StopRule:
    """Decides for all rollout engines where a response ends, and what its text is.

    Args:
        tokenizer: tokenizer of the policy.
        sampling: contains the stop tokens and strings.

    Raises:
        ConfigError: if a stop token is not in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> None:
        vocabulary = tokenizer.get_vocab() if sampling.stop_tokens else {}
        unknown = [token for token in sampling.stop_tokens if token not in vocabulary]
        if unknown:
            raise ConfigError(
                f"rollouts.stop_tokens has {unknown}, which the tokenizer's vocabulary of "
                f"{len(vocabulary)} tokens lacks; name tokens of the vocabulary, or use "
                "rollouts.stop for texts"
            )
        self.token_ids = [eos_id(tokenizer), *(vocabulary[t] for t in sampling.stop_tokens)]
        self._tokenizer = tokenizer
        self._strings = sampling.stop
        # A token has at least one byte.
        longest = max((len(text.encode()) for text in sampling.stop), default=0)
        self._window = longest + SPARE_TOKENS

    def is_met(self, ids: Sequence[int]) -> bool:
        """Whether a response of these tokens ends with the last one of them."""
        return ids[-1] in self.token_ids or self._ends_with_string(ids)

    @property
    def has_strings(self) -> bool:
        """Whether a text may end a response."""
        return bool(self._strings)

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a response ends somewhere within these tokens."""
        return any(token in self.token_ids for token in ids) or self._is_stop_in(ids)

    def rollout(
        self, prompt: Prompt, ids: Sequence[int], logprobs: Sequence[float], version: int
    ) -> Rollout:
        """Build a rollout from sampled tokens; those after its end are cut off."""
        ends = (size for size in range(1, len(ids) + 1) if self.is_met(ids[:size]))
        end = next(ends, None)
        size = len(ids) if end is None else end
        return Rollout(
            prompt=prompt,
            response_ids=tuple(ids[:size]),
            logprobs=tuple(logprobs[:size]),
            text=self._text(ids[:size]),
            is_finished=end is not None,
            policy_version=version,
        )

    def _ends_with_string(self, ids: Sequence[int]) -> bool:
        return self._is_stop_in(ids[-self._window :]) and self._is_stop_in(ids)

    def _is_stop_in(self, ids: Sequence[int]) -> bool:
        if not self._strings:
            return False
        text = decode(self._tokenizer, ids)
        return any(string in text for string in self._strings)

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text before the stop token or the first stop string."""
        is_token = bool(ids) and ids[-1] in self.token_ids
        text = decode(self._tokenizer, ids[:-1] if is_token else ids)
        return text[: min((text.find(s) for s in self._strings if s in text), default=None)]
