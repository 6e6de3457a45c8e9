"""A bag-of-words baseline on preference pairs, and statistics for comparisons with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score

TOKEN = r"\w+|[^\w\s]"
RESAMPLES = 2000
Vector = NDArray[np.float64]


def _counts(longest: int) -> Any:
    return CountVectorizer(ngram_range=(1, longest), token_pattern=TOKEN)


def _presence(longest: int) -> Any:
    return CountVectorizer(ngram_range=(1, longest), token_pattern=TOKEN, binary=True)


def _tfidf(longest: int) -> Any:
    return TfidfVectorizer(ngram_range=(1, longest), token_pattern=TOKEN, sublinear_tf=True)


FEATURES: Mapping[str, Callable[[int], Any]] = {
    "counts": _counts,
    "presence": _presence,
    "tf-idf": _tfidf,
}
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True)
class BagOfWords:
    """A fitted baseline.

    Attributes:
        description: features and regularisation with the best result in the cross-validation.
        validation_accuracy: mean accuracy of this best result over the folds.
        margins: score of chosen minus score of rejected, for each held-out pair.
    """

    description: str
    validation_accuracy: float
    margins: Vector


def bag_of_words(
    train: Sequence[Mapping[str, Any]],
    heldout: Sequence[Mapping[str, Any]],
    *,
    longest: int = 1,
    folds: int = 5,
    strengths: Sequence[float] = STRENGTHS,
) -> BagOfWords:
    """Fit a logistic regression to feature differences; each pair is used with both signs.

    Cross-validation on the training pairs chooses the features (counts, presence or tf-idf) and the
    strength of the regularisation; pairs with the same prompt are in the same fold.

    Args:
        train: training pairs.
        heldout: held-out pairs.
        longest: longest n-gram; 1 is a bag of words, 2 also has pairs of neighbouring words.
        folds: number of folds of the cross-validation.
        strengths: values of C to try.
    """
    texts = [_said(row[side]) for row in train for side in ("chosen", "rejected")]
    labels = np.repeat([1, 0], len(train))
    prompts = [str(row["prompt"]) for row in train] * 2
    best = (0.0, "", _counts(1), STRENGTHS[0])
    for name, make in FEATURES.items():
        features = make(longest).fit(texts)
        differences = _differences(features, train)
        both = sparse.vstack([differences, -differences]).tocsr()
        for strength in strengths:
            score = cross_val_score(
                _regression(strength), both, labels, groups=prompts, cv=GroupKFold(folds)
            ).mean()
            if score > best[0]:
                best = (score, name, features, strength)
    score, name, features, strength = best
    differences = _differences(features, train)
    both = sparse.vstack([differences, -differences]).tocsr()
    fitted = _regression(strength).fit(both, labels)
    margins = _differences(features, heldout) @ fitted.coef_[0]
    return BagOfWords(f"{name}, C = {strength:g}", float(score), np.asarray(margins))


def _regression(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, fit_intercept=False, max_iter=300)


def _differences(features: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    chosen, rejected = (
        features.transform([_said(row[side]) for row in rows]) for side in ("chosen", "rejected")
    )
    return chosen - rejected


def _said(messages: Sequence[Mapping[str, str]]) -> str:
    return " ".join(message["content"] for message in messages)


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Text in this form: `0.930 [0.880, 0.970]`."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_with_interval(values: Sequence[float] | Vector) -> Interval:
    """Mean of independent values or paired differences, with a percentile bootstrap interval."""
    found = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(found), size=(RESAMPLES, len(found)))
    low, high = np.quantile(found[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(found.mean()), float(low), float(high))


def share_with_interval(hits: Sequence[bool] | NDArray[np.bool_]) -> Interval:
    """Share of hits, with the Wilson interval."""
    counted = np.asarray(hits)
    found = stats.binomtest(int(counted.sum()), len(counted))
    interval = found.proportion_ci(method="wilson")
    return Interval(float(found.statistic), float(interval.low), float(interval.high))


def mcnemar(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """P-value (two-sided, exact) of McNemar's test that two classifiers are equally good."""
    wins, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def balanced_accuracy(says_right: NDArray[np.bool_], is_right: NDArray[np.bool_]) -> float:
    """Mean of two recalls: of the right steps and of the wrong steps."""
    return float((says_right[is_right].mean() + (~says_right[~is_right]).mean()) / 2)
