"""Compare GRPO: seconds of a step (rollouts and update) of Ratchet and of TRL's GRPOTrainer.

    python -m benchmarks grpo DATA [--repeats 5] [--steps 6] [--threads 2]
    python -m benchmarks grpo DATA --vllm

DATA is a folder with a small pretrained model and stories. Both libraries start from the same
weights, in fp32, and do the same: in each step some prompts, a group of responses to each, one
reward per response (its share of one letter), one optimizer step, no KL penalty. Both sample with
transformers. The responses are random, so the tables show how long they are.

With `--vllm` Ratchet also samples with vLLM, without the start of its engine. vLLM's CPU build has
no kernel for the heads of the pretrained model, so all runs then have one of random weights, whose
heads have a width of 64.

Each library's setting that only splits a batch is tried once, and the fastest one is measured. The
first step is not counted. Prints one Markdown table of medians over repeats, with the ratio to TRL
in each repeat as median [smallest, largest], and another one with the parts of Ratchet's steps.
"""

from __future__ import annotations

import logging
import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch

from benchmarks.grpo_trl import TrlGrpo
from benchmarks.training_rows import PRETRAINED
from stages import ppo
from stages.attempt import Attempt
from stages.configs.ppo_config import PpoConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.sampling.rollouts import load_prompts
from training_core.data.chat import CHAT_TEMPLATES
from training_core.models import hub, scratch

STORIES = "text/tinystories_v2_gpt4_first_sentence.train.jsonl.gz"
REWARD = '''"""The reward of both libraries."""


def share(text):
    return text.count("e") / max(1, len(text))


def of_rollout(rollout):
    return share(rollout.text)
'''
RANDOM = scratch.Architecture(
    hidden_size=256, num_layers=4, num_heads=4, intermediate_size=768, max_positions=512
)
PARTS = ("sync", "sample", "experience", "update")
MICRO_BATCHES = (2048, 8192, 32768)
"""Settings of Ratchet: `micro_batch_tokens`."""
ACCUMULATIONS = (1, 4)
"""Settings of TRL: micro-batches per step."""


@dataclass(frozen=True)
class Measured:
    """The steps of one run, without the first.

    Attributes:
        seconds: per step.
        tokens: mean length of a response.
        parts: seconds per step of each of `PARTS`, if they are known.
    """

    seconds: float
    tokens: float
    parts: dict[str, float]


@dataclass(frozen=True)
class Task:
    """What both libraries do.

    Attributes:
        policy: folder of the model.
        config: of the stage `ppo`.
        folder: for the runs.
    """

    policy: Path
    config: PpoConfig
    folder: Path

    def run(self, budget: int, engine: str = "transformers") -> Measured:
        """Run the stage `ppo` with micro-batches of so many tokens and a rollout engine."""
        attempt = Attempt(Path(tempfile.mkdtemp(dir=self.folder)) / "a1")
        attempt.directory.mkdir()
        rollouts = self.config.rollouts.model_copy(update={"engine": engine})
        changes = {"micro_batch_tokens": budget, "rollouts": rollouts}
        config = self.config.model_copy(update=changes)
        context = Context(attempt, FileSink(attempt, "ppo"), (), lambda: False)
        ppo.run(config, {"policy": self.policy}, context)
        curve = [line["metrics"] for line in read_jsonl(attempt.metrics)][1:]
        parts = {part: fmean(step[f"ppo/{part}_seconds"] for step in curve) for part in PARTS}
        tokens = fmean(step["ppo/response_tokens"] for step in curve)
        return Measured(sum(parts.values()), tokens, parts)


def run(arguments: Namespace) -> None:
    """Measure both libraries in turn and print the tables."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        task = prepare(arguments, Path(folder))
        other = TrlGrpo(task.policy, task.config, _texts(task), Path(folder))
        budget = min(MICRO_BATCHES, key=lambda tokens: task.run(tokens).seconds)
        cuts = min(ACCUMULATIONS, key=lambda number: other.run(number)[0])
        engines = ["transformers", "vllm"] if arguments.vllm else ["transformers"]
        ours: dict[str, list[Measured]] = {engine: [] for engine in engines}
        theirs = []
        for _ in range(arguments.repeats):
            for engine, runs in ours.items():
                runs.append(task.run(budget, engine))
            theirs.append(Measured(*other.run(cuts), {}))
    for line in (*_comparison(task.config, ours, theirs, budget, cuts), "", *_shares(ours)):
        print(line)


def prepare(arguments: Namespace, folder: Path) -> Task:
    """Write reward and model into `folder`."""
    (folder / "reward.py").write_text(REWARD)
    tokenizer = hub.load_tokenizer(arguments.data / PRETRAINED)
    tokenizer.chat_template = CHAT_TEMPLATES["plain"]
    known = None if arguments.vllm else hub.load_policy(arguments.data / PRETRAINED)
    policy = known or scratch.make_policy(RANDOM, tokenizer, seed=0)
    hub.save(policy, tokenizer, folder / "policy")
    config = PpoConfig.model_validate(
        {
            "prompts": {
                "name": "files",
                "path": str(arguments.data / STORIES),
                "columns": {"response": "completion"},
                "limit": arguments.prompts * arguments.steps,
            },
            "reward": {"name": "python", "path": f"{folder / 'reward.py'}:of_rollout"},
            "rollouts": {
                "engine": "transformers",
                "max_response_tokens": arguments.tokens,
                "max_tokens": arguments.tokens + 128,
            },
            "steps": arguments.steps,
            "prompts_per_step": arguments.prompts,
            "group_size": arguments.group,
            "updates_per_step": 1,
            "old_logprobs": "update",  # as TRL does
            "advantage": {"name": "grpo"},
            "kl_coef": 0.0,
            "save_every_steps": arguments.steps,
            "resources": {"num_cpus": arguments.threads},
        }
    )
    return Task(folder / "policy", config, folder)


def _texts(task: Task) -> Sequence[str]:
    """Return the prompts as texts of which TRL makes the same tokens.

    Raises:
        SystemExit: if there are none.
    """
    tokenizer = hub.load_tokenizer(task.policy)
    prompts = load_prompts(task.config.prompts, tokenizer, task.config.rollouts)
    whole = [prompt.text for prompt in prompts]
    for texts in (whole, [text.removeprefix(str(tokenizer.bos_token or "")) for text in whole]):
        ids: Any = tokenizer(texts)["input_ids"]
        if [tuple(each) for each in ids] == [prompt.input_ids for prompt in prompts]:
            return texts
    raise SystemExit("TRL would make other tokens of the prompts")


def _comparison(
    config: PpoConfig,
    ours: Mapping[str, Sequence[Measured]],
    theirs: Sequence[Measured],
    budget: int,
    cuts: int,
) -> Iterator[str]:
    rollouts = config.prompts_per_step * config.group_size
    yield "| library | sampler | rollouts/s | of TRL | tokens per response | setting |"
    yield "|---|---|---|---|---|---|"
    setting = f"micro_batch_tokens: {budget}"
    rows = [("Ratchet", engine, runs, setting) for engine, runs in ours.items()]
    for name, engine, runs, how in (
        *rows,
        ("TRL", "transformers", theirs, f"{cuts} micro-batches"),
    ):
        speed = rollouts / median(each.seconds for each in runs)
        ratios = [t.seconds / o.seconds for o, t in zip(runs, theirs, strict=True)]
        ratio = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        tokens = fmean(each.tokens for each in runs)
        yield f"| {name} | {engine} | {speed:.1f} | {ratio} | {tokens:.1f} | {how} |"


def _shares(ours: Mapping[str, Sequence[Measured]]) -> Iterator[str]:
    yield "| sampler | part of a step | seconds | share |"
    yield "|---|---|---|---|"
    for engine, runs in ours.items():
        whole = median(each.seconds for each in runs)
        for part in PARTS:
            seconds = median(each.parts[part] for each in runs)
            yield f"| {engine} | {part} | {seconds:.3f} | {seconds / whole:.1%} |"
