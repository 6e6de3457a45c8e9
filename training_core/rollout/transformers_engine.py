"""Rollouts from `transformers.generate`: slow, but computed with the same code as training.

A prompt of several responses is computed once, and responses that have ended leave the batch.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import torch
from torch import BoolTensor, Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from training_core.data.chat import pad_id
from training_core.engine.protocol import DividedModel
from training_core.rollout.choosing import SeededChoice
from training_core.rollout.digest import fingerprint
from training_core.rollout.engine import (
    Policy,
    claim_ids,
    generate_in_order,
    named_weights,
    require_idle,
)
from training_core.rollout.engine_messages import Bucket
from training_core.rollout.sampled_rows import SampledRows, can_select_rows
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.rollout.stopping import StopRule
from training_core.rollout.weight_buckets import BucketReader
from training_core.rollout.weight_channels import Channel
from training_core.types import Prompt, Rollout

SEGMENT_TOKENS = 16
"""Tokens after which the responses that have ended leave the batch."""
MAX_ROWS = 128
"""Rows per call of `generate`; limits the key-value cache, which grows with rows times tokens."""


class _Stopping(StoppingCriteria):
    """Ends the rows whose response has a stop string; `generate` itself knows the stop tokens.

    Args:
        rule: where responses end.
        prompt_tokens: width of the padded prompts.
    """

    def __init__(self, rule: StopRule, prompt_tokens: int) -> None:
        self._rule = rule
        self._start = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> BoolTensor:
        """Return which rows of `input_ids` [B, T] end with their last token: [B]."""
        del scores, kwargs
        rows = input_ids[:, self._start :].tolist()
        met = torch.tensor([self._rule.is_met(row) for row in rows], device=input_ids.device)
        return cast("BoolTensor", met)


class _StepCounter(LogitsProcessor):
    """Counts steps of `generate`."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, input_ids: Tensor, scores: Any) -> torch.FloatTensor:
        """Count, and return `scores` as they are."""
        del input_ids
        self.steps += 1
        return scores


class TransformersEngine:
    """Samples with Hugging Face `generate` from a copy of the policy.

    The requests of one `submit` with the same sampling parameters are the rows of one batch, at
    most `MAX_ROWS`. Requests of two `submit`s never share a batch, so rounding does not depend on
    when they arrive.

    Args:
        policy: the architecture and the first weights; they are copied.
        tokenizer: tokenizer of the policy.
        device: where it samples; None: where the policy is.
    """

    name = "transformers"

    def __init__(
        self,
        policy: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device | None = None,
    ) -> None:
        # Each architecture has its own `generate`. Weights that require gradients are multiplied by
        # other kernels, with another rounding.
        copied: Any = copy.deepcopy(policy).eval().requires_grad_(False)
        self._model = copied if device is None else copied.to(device)
        # A hub model may have penalties or top-p in its config. They would change the samples, but
        # not the recorded log-probabilities (TRL#6789).
        self._model.generation_config = GenerationConfig()
        self._rows_can_leave = can_select_rows(self._model)
        self._tokenizer = tokenizer
        self._unfinished: dict[str, RolloutRequest] = {}
        self._batches: deque[Sequence[RolloutRequest]] = deque()
        self._done: deque[tuple[str, Rollout]] = deque()
        self._counter = _StepCounter()
        self._reader: BucketReader | None = None
        self.policy_version = 0

    @property
    def steps(self) -> int:
        """Number of steps of `generate` so far."""
        return self._counter.steps

    def load_weights(self, policy: Policy, version: int) -> str:
        """Copy the weights; see `RolloutEngine.load_weights`.

        An adapter is copied as it is, so a divided model is gathered whole.
        """
        if isinstance(policy, DividedModel):
            with policy.whole() as model:
                return self.load_weights(model, version)
        theirs = (parameter.detach() for parameter in policy.parameters())
        mine = self._model.parameters()
        return self._load(zip(mine, theirs, strict=True), version)

    def join(self, channel: Channel) -> None:
        """Receive weights through this channel from now on."""
        self._reader = BucketReader(channel, self._model.device)

    def receive_weights(self, buckets: Iterable[Bucket], version: int) -> str:
        """Copy weights that another process sends; see `ReceivingEngine.receive_weights`."""
        mine: dict[str, Tensor] = self._model.state_dict()
        reader = self._reader
        if reader is None:
            raise ValueError("expected a channel for weights, found none; call `join` first")
        arrived = (named for bucket in buckets for named in reader.read(bucket.pieces))
        return self._load(((mine[name], theirs) for name, theirs in arrived), version)

    def _load(self, pairs: Iterable[tuple[Tensor, Tensor]], version: int) -> str:
        require_idle(self._unfinished, version)
        with torch.no_grad():
            for mine, theirs in pairs:
                mine.copy_(theirs)
        self.policy_version = version
        return self.digest_of(named_weights(self._model))

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the fingerprint of weights; see `RolloutEngine.digest_of`."""
        return fingerprint(weights)

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Accept requests; see `RolloutEngine.submit`."""
        for sampling, _ in groupby(requests, key=lambda request: request.sampling):
            StopRule(self._tokenizer, sampling)  # to fail before any request is accepted
        claim_ids(self._unfinished, requests)
        for _, same in groupby(requests, key=lambda request: request.sampling):
            rows = list(same)
            self._batches += [rows[i : i + MAX_ROWS] for i in range(0, len(rows), MAX_ROWS)]

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Sample and yield rollouts; see `RolloutEngine.finished`."""
        while self._unfinished:
            if not self._done:
                self._done += self._generate_rows(self._batches.popleft())
            name, rollout = self._done.popleft()
            del self._unfinished[name]
            yield name, rollout

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `generate_in_order`."""
        return generate_in_order(self, prompts, sampling, seeds)

    def sleep(self) -> None:
        """Do nothing: between two syncs there are only the weights."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    @torch.no_grad()
    def _generate_rows(self, requests: Sequence[RolloutRequest]) -> list[tuple[str, Rollout]]:
        """Sample in segments; the responses that have ended leave the batch after each."""
        sampling = requests[0].sampling
        rule = StopRule(self._tokenizer, sampling)
        batch = self._prompts([request.prompt for request in requests])
        start = batch.ids.shape[1]
        choice = SeededChoice([request.seed for request in requests], sampling)
        responses: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        longest = SEGMENT_TOKENS if self._rows_can_leave else sampling.max_response_tokens
        live = list(range(len(requests)))
        while live:
            left = start + sampling.max_response_tokens - batch.ids.shape[1]
            new = self._segment(batch, choice, rule, start, min(left, longest))
            rows = zip(live, new.tolist(), choice.take_logprobs().tolist(), strict=True)
            for row, tokens, own in rows:
                responses[row] += tokens
                logprobs[row] += own
            is_last = left <= longest
            kept = [i for i, row in enumerate(live) if not (is_last or rule.ends(responses[row]))]
            if len(kept) < len(live):
                choice.keep(kept)
                batch.keep(kept)
                live = [live[i] for i in kept]
        return [
            (request.id, rule.rollout(request.prompt, row, own, self.policy_version))
            for request, row, own in zip(requests, responses, logprobs, strict=True)
        ]

    def _prompts(self, prompts: Sequence[Prompt]) -> SampledRows:
        """Return the prompts [B, P] with their cache; a prompt of several rows is computed once."""
        ids, attention = (each.to(self._model.device) for each in self._left_pad(prompts))
        numbers: dict[tuple[int, ...], int] = {}
        own = [numbers.setdefault(tuple(prompt.input_ids), len(numbers)) for prompt in prompts]
        is_shared = len(numbers) < len(prompts) and self._rows_can_leave
        if not is_shared or ids.shape[1] == 1:
            return SampledRows(ids, attention, None)
        first = [own.index(number) for number in range(len(numbers))]
        begun = self._model.generate(
            input_ids=ids[first, :-1],
            attention_mask=attention[first, :-1],
            do_sample=False,
            max_new_tokens=1,  # the last token of the prompt is computed with the response
            return_dict_in_generate=True,
            pad_token_id=self._tokenizer.pad_token_id,
        )
        cache = begun.past_key_values
        cache.batch_select_indices(torch.tensor(own, device=ids.device))
        return SampledRows(ids, attention, cache)

    def _segment(
        self, batch: SampledRows, choice: SeededChoice, rule: StopRule, start: int, num_tokens: int
    ) -> Tensor:
        """Sample up to `num_tokens` tokens [B, T] for each row, and add them to the batch."""
        width = batch.ids.shape[1]
        sampled = self._model.generate(
            input_ids=batch.ids,
            attention_mask=batch.attention,
            past_key_values=batch.cache,
            do_sample=False,
            logits_processor=LogitsProcessorList([*choice.truncation, choice, self._counter]),
            stopping_criteria=StoppingCriteriaList(
                [_Stopping(rule, start)] if rule.has_strings else []
            ),
            max_new_tokens=num_tokens,
            return_dict_in_generate=True,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_id=rule.token_ids,
        )
        new = sampled.sequences[:, width:]
        batch.extend(new, sampled.past_key_values)
        return new

    def _left_pad(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        width = max(len(p.input_ids) for p in prompts)
        ids = torch.full((len(prompts), width), pad_id(self._tokenizer))
        attention = torch.zeros((len(prompts), width), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.input_ids) :] = torch.tensor(prompt.input_ids)
            attention[row, width - len(prompt.input_ids) :] = 1
        return ids, attention
