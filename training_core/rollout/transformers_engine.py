"""Rollouts from `transformers.generate`: slow, but computed with the same code as training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
)

from training_core.data.chat import decode, pad_id
from training_core.rollout.engine import Sampling, fingerprint, named_weights
from training_core.types import Prompt, Rollout

MAX_ROWS = 128
"""Rows per call of `generate`; limits the key-value cache, which grows with rows times tokens."""


class GumbelNoise(LogitsProcessor):
    """Makes the arg-max of the logits a sample of their softmax, with one generator per row.

        argmax_v(logits_v / temperature + g_v) ~ softmax(logits / temperature)
        g_v = -log(e_v), e_v exponentially distributed

    So a response depends on its own seed and not on the other rows of the batch.

    Args:
        temperature: > 0.
        seeds: one per row.

    Source:
        Gumbel 1954; Maddison, Tarlow & Minka 2014, eq. 2, https://arxiv.org/abs/1411.0030
    """

    def __init__(self, temperature: float, seeds: Sequence[int]) -> None:
        self._temperature = temperature
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> torch.FloatTensor:
        """Perturb `scores` [B, V]."""
        del input_ids
        vocabulary = scores.shape[1]
        exponential = torch.stack(
            [torch.empty(vocabulary).exponential_(generator=g) for g in self._generators]
        )
        # -log of an exponential variable is a Gumbel variable.
        noisy = scores.float() / self._temperature - exponential.to(scores.device).log()
        return cast("torch.FloatTensor", noisy)


class TransformersEngine:
    """Samples with Hugging Face `generate` from a copy of the policy."""

    name = "transformers"

    def __init__(self, policy: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model: Any = copy.deepcopy(policy).eval()  # each architecture has its own `generate`
        # A hub model may have penalties or top-p in its config. They would change the samples, but
        # not the recorded log-probabilities (TRL#6789).
        self._model.generation_config = GenerationConfig()
        self._tokenizer = tokenizer
        self.policy_version = 0

    def load_weights(self, policy: nn.Module, version: int) -> str:
        """Copy the weights; see `RolloutEngine.load_weights`."""
        with torch.no_grad():
            for mine, theirs in zip(self._model.parameters(), policy.parameters(), strict=True):
                mine.copy_(theirs)
        self.policy_version = version
        return fingerprint(named_weights(self._model))

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `RolloutEngine.generate`."""
        rollouts = []
        for i in range(0, len(prompts), MAX_ROWS):
            rows, row_seeds = prompts[i : i + MAX_ROWS], seeds[i : i + MAX_ROWS]
            rollouts += self._generate_rows(rows, sampling, row_seeds)
        return rollouts

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _generate_rows(
        self, prompts: Sequence[Prompt], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Rollout]:
        ids, attention = self._left_pad(prompts)
        device = self._model.device
        noise = [GumbelNoise(sampling.temperature, seeds)] if sampling.temperature > 0 else []
        output = self._model.generate(
            input_ids=ids.to(device),
            attention_mask=attention.to(device),
            do_sample=False,
            logits_processor=LogitsProcessorList(noise),
            max_new_tokens=sampling.max_response_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_id=self._tokenizer.eos_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        responses = output.sequences[:, ids.shape[1] :].cpu()
        logprobs = self._sampled_logprobs(output.logits, responses, sampling.temperature)
        return [
            self._rollout(prompt, responses[row].tolist(), logprobs[row].tolist())
            for row, prompt in enumerate(prompts)
        ]

    def _left_pad(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        width = max(len(p.input_ids) for p in prompts)
        ids = torch.full((len(prompts), width), pad_id(self._tokenizer))
        attention = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.input_ids) :] = torch.tensor(prompt.input_ids)
            attention[row, width - len(prompt.input_ids) :] = 1
        return ids, attention

    @staticmethod
    def _sampled_logprobs(
        logits: Sequence[Tensor], responses: Tensor, temperature: float
    ) -> Tensor:
        columns = [
            (step.float().cpu() / (temperature or 1.0))
            .log_softmax(-1)
            .gather(1, responses[:, t : t + 1])
            for t, step in enumerate(logits)
        ]
        return torch.cat(columns, dim=1)

    def _rollout(self, prompt: Prompt, ids: list[int], logprobs: list[float]) -> Rollout:
        eos = self._tokenizer.eos_token_id
        is_finished = eos in ids
        size = ids.index(eos) + 1 if is_finished else len(ids)
        return Rollout(
            prompt=prompt,
            response_ids=tuple(ids[:size]),
            logprobs=tuple(logprobs[:size]),
            text=decode(self._tokenizer, ids[:size]),
            is_finished=is_finished,
            policy_version=self.policy_version,
        )
