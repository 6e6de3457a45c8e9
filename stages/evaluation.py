"""Evaluation: a policy and a baseline on the same held-out prompts, scored by one reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stages.configs.evaluation_config import EvaluationConfig
from stages.contract import Context, Inputs, Result
from stages.datasets.configured import prompts_without
from stages.files import write_json, write_jsonl
from stages.sampling.judging import Judged, judge_policies
from stages.sampling.scored_groups import sampled_tokens
from stages.sampling.win_rate import compare, describe
from training_core.types import ScoredRollout

BASELINE_METRICS = ("mean_reward", "reward_stderr")


def run(config: EvaluationConfig, inputs: Inputs, context: Context) -> Result:
    """Sample from `policy`, `baseline` and every further policy, with the same seed, and score all.

    Further policies are inputs whose role starts with `policy_`; they appear in the artifact under
    the rest of their role. The artifact holds `summary.json` (the numbers of every policy) and
    `samples.jsonl` (the responses).

    Metrics of `policy`: `mean_reward`, `reward_stderr`, `response_tokens`, `finished_fraction`;
    against the baseline `win_rate` (a tie is half a win) with its 95 % interval `win_rate_low`,
    `win_rate_high`, `judged_prompts`, `won_prompts`, `lost_prompts`, `judged_fraction` (of the
    prompts), `reward_gain`, and `kl_to_baseline` (nats per response; missing if the two tokenise
    differently); `component_<name>`, if the reward has parts; and `baseline_mean_reward`,
    `baseline_reward_stderr`.
    """
    rows = prompts_without(config.prompts, config.exclude)
    judged = judge_policies(config, inputs, rows, context)
    baseline = judged["baseline"]
    summary = {
        name: describe(policy) | _against(baseline, policy, len(rows))
        for name, policy in judged.items()
    }
    write_json(context.artifact_dir / "summary.json", summary, indent=2)
    samples = (_samples(name, policy.scored) for name, policy in judged.items())
    write_jsonl(context.artifact_dir / "samples.jsonl", [row for rows in samples for row in rows])
    shared = {f"baseline_{k}": v for k, v in summary["baseline"].items() if k in BASELINE_METRICS}
    metrics = {**summary["policy"], **shared}
    return Result(
        {name: value for name, value in metrics.items() if value is not None},
        sampled_tokens=sampled_tokens(policy.scored for policy in judged.values()),
    )


def _against(baseline: Judged, policy: Judged, num_prompts: int) -> dict[str, float]:
    compared = compare(policy.scored, baseline.scored)
    return {**compared, "judged_fraction": compared["judged_prompts"] / num_prompts}


def _samples(name: str, scored: Sequence[ScoredRollout]) -> list[dict[str, Any]]:
    return [
        {
            "policy": name,
            "prompt_id": s.rollout.prompt.id,
            "prompt": s.rollout.prompt.messages[-1]["content"],
            "response": s.rollout.text,
            "finished": s.rollout.is_finished,
            "reward": s.reward,
            **({"components": dict(s.components)} if s.components else {}),
        }
        for s in scored
    ]
