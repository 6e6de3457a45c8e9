"""One response of a policy, whose text is given away piece by piece while it is sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    TextStreamer,
)

from training_core.models.language_model import LanguageModel
from training_core.rollout.choosing import SeededChoice, truncation
from training_core.rollout.sampling import Sampling
from training_core.rollout.stopping import StopRule
from training_core.types import Prompt, Rollout


class _Pieces(TextStreamer):
    """Gives whole words away."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Give a piece away; `transformers` calls this."""
        del stream_end
        if text:
            self._on_text(text)


class StreamingPolicy:
    """Samples single responses, the same ones as `TransformersEngine` samples from their seeds.

    Args:
        policy: a causal language model in eval mode; its generation config is replaced.
        tokenizer: its tokenizer.
    """

    def __init__(self, policy: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model: Any = policy  # each architecture has its own `generate`
        self._model.generation_config = GenerationConfig()  # that of a hub model may have penalties
        self._tokenizer = tokenizer

    @torch.no_grad()
    def respond(
        self, prompt: Prompt, sampling: Sampling, *, seed: int, on_text: Callable[[str], object]
    ) -> Rollout:
        """Sample a response.

        Args:
            prompt: the prompt.
            sampling: parameters of sampling, without stop strings.
            seed: of the response.
            on_text: gets each piece of the text when it is there.
        """
        rule = StopRule(self._tokenizer, sampling)
        choice = SeededChoice([seed], sampling)
        ids = torch.tensor([prompt.input_ids], device=self._model.device)
        sequences = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            logits_processor=LogitsProcessorList([*truncation(sampling), choice]),
            max_new_tokens=sampling.max_response_tokens,
            eos_token_id=rule.token_ids,
            pad_token_id=rule.token_ids[0],  # one row needs no padding
            streamer=_Pieces(self._tokenizer, on_text),
        )
        response = sequences[0, ids.shape[1] :].tolist()
        return rule.rollout(prompt, response, choice.take_logprobs()[0].tolist(), 0)
