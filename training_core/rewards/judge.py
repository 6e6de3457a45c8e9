"""A language model as judge: it rates a response, or chooses between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from training_core.rewards.chat_model import ChatModel, conversation, filled, only_line
from training_core.rewards.reward import Unscored
from training_core.types import Rollout

TIE = 0.5
NUMBER = r"[+-]?\d{1,9}(?:\.\d{1,9})?"
WINS = {"a": 1.0, "tie": TIE, "b": 0.0}


class JudgeReward:
    """Scores rollouts with the number that a model gives each of them.

    The model's answer must have exactly one line `Score: <number>`, and the number must be in the
    range; otherwise the rollout is unscored.

    Args:
        model: the judge.
        template: the question, with the fields {prompt}, {response}, {label}, {low} and {high}.
        low: lowest score.
        high: highest score.
        concurrency: questions at once.
        label_column: column of the prompts' dataset that is the {label}; None if there is none.
    """

    def __init__(
        self,
        model: ChatModel,
        template: str,
        *,
        low: float,
        high: float,
        concurrency: int,
        label_column: str | None = None,
    ) -> None:
        self._model = model
        self._template = template
        self._low, self._high = low, high
        self._concurrency = concurrency
        self._label_column = label_column

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`.

        Raises:
            ConfigError: if the service refuses a request.
            TransientError: if it does not answer, after retries.
        """
        with ThreadPoolExecutor(self._concurrency) as pool:
            return list(pool.map(self._score, rollouts))

    def _score(self, rollout: Rollout) -> float | Unscored:
        fields = _fields_of(rollout, self._label_column)
        if isinstance(fields, Unscored):
            return fields
        limits = {"low": f"{self._low:g}", "high": f"{self._high:g}"}
        question = filled(self._template, {**fields, **limits, "response": rollout.text})
        return self._model.ask(question, self._read)

    def _read(self, answer: str) -> float | Unscored:
        found = only_line("Score", NUMBER, answer)
        if isinstance(found, Unscored):
            return found
        if not self._low <= float(found) <= self._high:
            return Unscored(
                f"expected a score from {self._low:g} to {self._high:g} from the judge, "
                f"found {found}"
            )
        return float(found)


class PairwiseJudge:
    """Compares responses to the same prompt: 1 if the first is better, 0 if worse, 0.5 for a tie.

    Models prefer a place, so each pair is shown in both orders. If the two verdicts disagree, the
    pair is a tie. The answers must have exactly one line `Verdict: A`, `B` or `tie`.

    Args:
        model: the judge.
        template: the question, with the fields {prompt}, {response_a}, {response_b} and {label}.
        concurrency: questions at once.
        label_column: column of the prompts' dataset that is the {label}; None if there is none.

    Source:
        Zheng et al. 2023 (MT-Bench), section 3.4, https://arxiv.org/abs/2306.05685
    """

    def __init__(
        self,
        model: ChatModel,
        template: str,
        *,
        concurrency: int,
        label_column: str | None = None,
    ) -> None:
        self._model = model
        self._template = template
        self._concurrency = concurrency
        self._label_column = label_column

    def compare(
        self, rollouts: Sequence[Rollout], opponents: Sequence[Rollout]
    ) -> list[float | Unscored]:
        """Compare each rollout with its opponent; equal texts are a tie without a question.

        Raises:
            ConfigError: if the service refuses a request.
            TransientError: if it does not answer, after retries.
        """
        pairs = list(zip(rollouts, opponents, strict=True))
        questions = [
            partial(self._verdict, *pair)
            for one, other in pairs
            for pair in ((one, other), (other, one))
        ]
        with ThreadPoolExecutor(self._concurrency) as pool:
            verdicts = list(pool.map(lambda question: question(), questions))
        return [
            _agreed(first, second)
            for first, second in zip(verdicts[::2], verdicts[1::2], strict=True)
        ]

    def _verdict(self, first: Rollout, second: Rollout) -> float | Unscored:
        """Return 1 if the response that is shown first is better."""
        if first.text == second.text:
            return TIE
        fields = _fields_of(first, self._label_column)
        if isinstance(fields, Unscored):
            return fields
        responses = {"response_a": first.text, "response_b": second.text}
        return self._model.ask(filled(self._template, {**fields, **responses}), _winner)


def _winner(answer: str) -> float | Unscored:
    found = only_line("Verdict", "|".join(WINS), answer)
    return found if isinstance(found, Unscored) else WINS[found.lower()]


def _agreed(first: float | Unscored, second: float | Unscored) -> float | Unscored:
    """Join the verdicts of both orders; the second one is about the pair turned around."""
    if isinstance(first, Unscored):
        return first
    if isinstance(second, Unscored):
        return second
    return first if first == 1 - second else TIE


def _fields_of(rollout: Rollout, label_column: str | None) -> Mapping[str, str] | Unscored:
    prompt = rollout.prompt
    if label_column is None:
        return {"prompt": conversation(prompt.messages)}
    label = prompt.columns.get(label_column)
    if label is None:
        return Unscored(f"the prompt's row has no value in column '{label_column}'")
    return {"prompt": conversation(prompt.messages), "label": str(label)}
