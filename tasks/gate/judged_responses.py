"""What the files of an evaluation show beyond its metrics: sources, lengths, refusals, repeats.

An evaluation leaves the responses of both policies (`samples.jsonl`). The prompts of most
evaluations come from several sources, and a policy that became better on average may have become
worse on one of them. This module counts each source, and compares the responses of both policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from stages.files import read_jsonl
from stages.runtime.store import Store
from stages.sampling.paired_rewards import PairedRewards, PromptRewards, count_wins, pairs_of
from tasks.gate.refusals import refusal_share
from tasks.refs import StageRef
from training_core.errors import IntegrityError
from training_core.strict_json import read_object

POLICY, OPPONENT = "policy", "baseline"
"""Names of the two policies in the files of an evaluation."""

REMEDY = "run the evaluation again (`force`)"


class SourceResult(BaseModel):
    """How the candidate did on the prompts of one source; see `PairedRewards`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    source: str
    won: int
    lost: int
    tied: int
    gain: float


class JudgedResponses(BaseModel):
    """The responses of a candidate beside those of its opponent.

    Attributes:
        sources: one result for each source of the prompts, by name.
        length_ratio: mean tokens of the candidate's responses over those of the opponent's; None if
            the opponent's are all empty.
        refusals: share of the candidate's responses that look like a refusal; see `refusals`.
        opponent_refusals: the same of the opponent.
        gain_noise: standard deviation that the mean gain would have if both policies answered the
            same prompts again, estimated from several responses to each prompt; None if no prompt
            has several of both.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    sources: tuple[SourceResult, ...]
    length_ratio: float | None
    refusals: float
    opponent_refusals: float
    gain_noise: float | None


def read_responses(
    store: Store, evaluation: StageRef, sources: Mapping[str, str]
) -> JudgedResponses:
    """Read the files of an evaluation.

    Args:
        store: holds them.
        evaluation: of the candidate beside its opponent.
        sources: name of the source of each prompt, by the prompt's id.

    Raises:
        IntegrityError: if the files are gone or are not those of an evaluation of these prompts.
    """
    manifest = store.find_digest(evaluation.stage, evaluation.key, evaluation.digest)
    if manifest is None:
        raise IntegrityError(
            f"expected the files of the step '{evaluation.step}' ({evaluation.stage} "
            f"{evaluation.key[:12]}) in {store.root}, found none that are whole; {REMEDY}"
        )
    folder = store.artifact_dir(manifest)
    summary = read_object(folder / "summary.json", remedy=REMEDY)
    rows = read_jsonl(folder / "samples.jsonl")
    ours, theirs = ([row for row in rows if row["policy"] == name] for name in (POLICY, OPPONENT))
    pairs = pairs_of(_rewards(ours), _rewards(theirs))
    return JudgedResponses(
        sources=tuple(_by_source(folder, pairs, sources)),
        length_ratio=_length_ratio(summary),
        refusals=refusal_share(row["response"] for row in ours),
        opponent_refusals=refusal_share(row["response"] for row in theirs),
        gain_noise=_gain_noise(list(pairs.values())),
    )


def _by_source(
    folder: Path, pairs: Mapping[str, PromptRewards], sources: Mapping[str, str]
) -> list[SourceResult]:
    if unknown := [prompt for prompt in pairs if prompt not in sources]:
        raise IntegrityError(
            f"{folder / 'samples.jsonl'}: expected prompts with the numbers 1 to {len(sources)}, "
            f"found {unknown[0]}; the data of the evaluation has changed since, so {REMEDY}"
        )
    grouped: dict[str, list[PromptRewards]] = {}
    for prompt, rewards in pairs.items():
        grouped.setdefault(sources[prompt], []).append(rewards)
    return [_result(source, count_wins(grouped[source])) for source in sorted(grouped)]


def _result(source: str, found: PairedRewards) -> SourceResult:
    return SourceResult(
        source=source, won=found.won, lost=found.lost, tied=found.tied, gain=found.gain
    )


def _rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["prompt_id"], []).append(row["reward"])
    return rewards


def _length_ratio(summary: Mapping[str, Any]) -> float | None:
    ours, theirs = (summary.get(p, {}).get("response_tokens") for p in (POLICY, OPPONENT))
    return ours / theirs if ours is not None and theirs else None


def _gain_noise(pairs: Sequence[PromptRewards]) -> float | None:
    """Return the square root of the mean over prompts of s²/k of both, over the prompts."""
    repeated = [(a, b) for a, b in pairs if min(len(a), len(b)) > 1]
    if not repeated:
        return None
    spread = fmean(variance(a) / len(a) + variance(b) / len(b) for a, b in repeated)
    return (spread / len(pairs)) ** 0.5
