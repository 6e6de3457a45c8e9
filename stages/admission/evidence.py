"""Evidence about a reward model on held-out pairs. Shapes: N pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from stages.admission.null_responses import spoiled
from stages.admission.null_rules import preferences_of
from stages.batches.measured_items import over_all
from stages.batches.micro_batches import Examples
from stages.configs.admission_config import NullName, RuleName
from stages.sampling.intervals import share_interval
from training_core.data.chat import eos_id, pad_id
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models.computing import ComputingModel
from training_core.models.scalar_head import sequence_scores
from training_core.types import Pair

SPOILED_PAIRS = 256
"""Held-out pairs whose chosen responses are spoiled; bounds the cost."""
CALIBRATION_BINS = 10


def held_out_evidence(
    model: ComputingModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Sequence[Pair],
    heldout: Sequence[Pair],
    scores: Tensor,
    *,
    max_tokens: int,
    budget_tokens: int,
    dist_info: DistInfo = SINGLE_PROCESS,
) -> dict[str, float]:
    """Measure what `AdmissionConfig` asks for.

    Args:
        model: the trained reward model.
        tokenizer: its tokenizer.
        train: pairs that it was trained on; they choose the direction of the rules.
        heldout: N > 0 held-out pairs.
        scores: [N, 2] of the held-out pairs: chosen, rejected.
        max_tokens: limit of a sequence.
        budget_tokens: padded tokens of a micro-batch, at most.
        dist_info: this process; every rank must call this.

    Returns:
        `heldout_accuracy_low` and `…_high`, `heldout_calibration_error`, `heldout_brier`; for each
        rule `rule_<name>_accuracy` and `over_rule_<name>_low`, a lower bound of the share of pairs
        that the model ranks right, of those where the two disagree; for each spoiled response
        `over_<name>`, the share of pairs whose chosen response scores higher, and its lower bound.
    """
    is_right = scores[:, 0] > scores[:, 1]
    low, high = share_interval(is_right.double().tolist())
    found = {"heldout_accuracy_low": low, "heldout_accuracy_high": high}
    found |= calibration(scores[:, 0] - scores[:, 1])
    for rule in get_args(RuleName):
        found |= _against_rule(rule, preferences_of(rule, tokenizer, train, heldout), is_right)
    some = heldout[:SPOILED_PAIRS]
    for name in get_args(NullName):
        copies = [
            spoiled(name, p.chosen, end=eos_id(tokenizer), max_tokens=max_tokens) for p in some
        ]
        lower = over_all(
            model,
            Examples(copies, pad_id(tokenizer), model.device),
            sequence_scores,
            budget_tokens=budget_tokens,
            columns=1,
            dist_info=dist_info,
        )[:, 0]
        wins = (scores[: len(some), 0] > lower).double().tolist()
        found |= {
            f"over_{name}": sum(wins) / len(wins),
            f"over_{name}_low": share_interval(wins)[0],
        }
    return found


def calibration(margins: Tensor) -> dict[str, float]:
    """Compare the probabilities that a Bradley-Terry model states with what is right.

    Args:
        margins: [N] score of the chosen minus that of the rejected response, N > 0.

    Returns:
        `heldout_calibration_error`, the mean distance of stated and measured accuracy over bins of
        equal counts, and `heldout_brier`, the mean squared error of the probability.

    Source:
        Guo et al. 2017, eq. 3 with bins of equal counts, https://arxiv.org/abs/1706.04599
    """
    chosen = torch.sigmoid(margins.double())
    stated = torch.maximum(chosen, 1 - chosen)  # of the response that the model prefers
    is_right = (margins > 0).double()
    order = stated.argsort()
    error = 0.0
    for members in order.chunk(min(CALIBRATION_BINS, len(order))):
        gap = float(stated[members].mean() - is_right[members].mean())
        error += len(members) / len(order) * abs(gap)
    return {
        "heldout_calibration_error": error,
        "heldout_brier": float((1 - chosen).square().mean()),
    }


def _against_rule(rule: RuleName, preferred: Tensor, is_right: Tensor) -> dict[str, float]:
    """Compare the model with a rule, pair by pair; a tie of the rule is half right."""
    of_rule = (preferred.double() + 1) / 2
    gain = is_right.double() - of_rule
    decided = [float(each > 0) for each in gain.tolist() if each]
    return {
        f"rule_{rule}_accuracy": float(of_rule.mean()),
        f"over_rule_{rule}_low": share_interval(decided)[0] if decided else 0.0,
    }
