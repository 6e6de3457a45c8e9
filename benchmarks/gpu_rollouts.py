"""Sampling with the engine `transformers`, for the benchmark `gpu`."""

from __future__ import annotations

from benchmarks.gpu_models import (
    UNTIMED,
    Case,
    Measured,
    in_precision,
    make_model,
    seconds_of,
    size_of,
)
from benchmarks.gpu_rows import count_flops, random_groups
from training_core.data.chat import CHAT_TEMPLATES
from training_core.models.scratch import make_tokenizer
from training_core.rollout.sampling import Sampling
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.types import Prompt, Rollout

TIMED = 2
"""Batches that are timed; each takes many forward passes."""
RESPONSE_SHARE = 4
"""Responses have at most this part of `max_tokens`."""


def generate(case: Case) -> Measured:
    """Time batches of prompts, each with a group of responses; only sampled tokens are counted."""
    model = make_model(case).eval()
    vocabulary, size, config = model.config.vocab_size, size_of(model), model.config
    engine = TransformersEngine(model, make_tokenizer([], CHAT_TEMPLATES["roles"]))
    del model  # the engine has a copy
    prompts = [
        Prompt(id=str(number), messages=(), text="", input_ids=ids)
        for number, (ids, _) in enumerate(
            random_groups(
                case, vocabulary, 0, num_prompts=case.batch_size // case.group_size, num_responses=0
            )
        )
    ]
    asked = [prompt for prompt in prompts for _ in range(case.group_size)]
    sampling = Sampling(case.max_tokens // RESPONSE_SHARE)
    rounds: list[list[Rollout]] = []

    def step(number: int) -> None:
        seeds = range(number * len(asked), (number + 1) * len(asked))
        rounds.append(in_precision(engine.generate, case)(asked, sampling, seeds=seeds))

    seconds = seconds_of(case, step, TIMED)
    sampled = [rollout for rollouts in rounds[UNTIMED:] for rollout in rollouts]
    flops = count_flops("generate", config, [(r.example(),) for r in sampled], shares=False)
    return Measured(size, sum(len(r.response_ids) for r in sampled), flops, seconds)
