"""Losses on pairs of responses, one number per pair. Shapes: B pairs.

Symbols of the formulas, with y+ the chosen and y- the rejected response and |y| its tokens:

    l(y)  = log pi(y | x) - log pi_ref(y | x)      log-ratio, nats
    a(y)  = log pi(y | x) / |y|                    mean log-probability, nats per token
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from training_core.algorithms.pair_logprobs import PairLogprobs


def dpo(pairs: PairLogprobs, *, beta: float, label_smoothing: float) -> Tensor:
    """Direct preference optimisation; with label smoothing, the conservative variant (cDPO).

        m = beta * (l(y+) - l(y-))
        loss = -(1 - eps) * log sigmoid(m) - eps * log sigmoid(-m)

    Args:
        pairs: needs the reference.
        beta: > 0.
        label_smoothing: eps in [0, 0.5), the assumed share of flipped labels.

    Returns:
        [B]; ln 2 where policy and reference agree.

    Source:
        Rafailov et al. 2023, eq. 7, https://arxiv.org/abs/2305.18290;
        eps: Mitchell 2023, eq. 3, https://ericmitchell.ai/cdpo.pdf
    """
    margin = beta * _difference(pairs.logratios())
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def robust(pairs: PairLogprobs, *, beta: float, label_smoothing: float) -> Tensor:
    """DPO corrected for flipped labels: its expectation equals the loss under the correct labels.

        m = beta * (l(y+) - l(y-))
        loss = (-(1 - eps) * log sigmoid(m) + eps * log sigmoid(-m)) / (1 - 2 eps)

    Args:
        pairs: needs the reference.
        beta: > 0.
        label_smoothing: eps in [0, 0.5), the share of flipped labels.

    Returns:
        [B]; ln 2 where policy and reference agree; for eps > 0 not bounded from below.

    Source:
        Chowdhury et al. 2024 (rDPO), https://arxiv.org/abs/2403.00409
    """
    margin = beta * _difference(pairs.logratios())
    kept, flipped = -logsigmoid(margin), -logsigmoid(-margin)
    return ((1 - label_smoothing) * kept - label_smoothing * flipped) / (1 - 2 * label_smoothing)


def ipo(pairs: PairLogprobs, *, beta: float) -> Tensor:
    """Identity preference optimisation on log-ratios averaged over the response's tokens.

        loss = (l(y+) / |y+| - l(y-) / |y-| - 1 / (2 beta))^2

    The paper writes log pi(y | x) of whole responses, i.e. sums (`ipo_summed`). Its authors told
    the authors of TRL that their results used averages. With sums, the distance 1 / (2 beta) would
    have another meaning for each length.

    Args:
        pairs: needs the reference.
        beta: > 0, the paper's tau, here per token.

    Returns:
        [B]; 1 / (4 beta^2) where policy and reference agree.

    Source:
        Azar et al. 2023, eq. 17, https://arxiv.org/abs/2310.12036;
        averages: https://huggingface.co/blog/pref-tuning, TRL#1265.
    """
    return (_difference(pairs.mean_logratios()) - 1 / (2 * beta)) ** 2


def ipo_summed(pairs: PairLogprobs, *, beta: float) -> Tensor:
    """Identity preference optimisation on summed log-ratios, as in OpenRLHF.

        loss = (l(y+) - l(y-) - 1 / (2 beta))^2

    Args:
        pairs: needs the reference.
        beta: > 0, the paper's tau.

    Returns:
        [B]; 1 / (4 beta^2) where policy and reference agree.

    Source:
        Azar et al. 2023, eq. 17, taken literally, https://arxiv.org/abs/2310.12036
    """
    return (_difference(pairs.logratios()) - 1 / (2 * beta)) ** 2


def hinge(pairs: PairLogprobs, *, beta: float) -> Tensor:
    """Hinge loss of SLiC on the log-ratios, as in statistical rejection sampling (RSO).

        loss = max(0, 1 - beta * (l(y+) - l(y-)))

    Args:
        pairs: needs the reference.
        beta: > 0; the loss is 0 for differences of at least 1 / beta nats.

    Returns:
        [B]; 1 where policy and reference agree.

    Source:
        Liu et al. 2023 (RSO, hinge-norm), https://arxiv.org/abs/2309.06657;
        Zhao et al. 2023 (SLiC-HF), https://arxiv.org/abs/2305.10425
    """
    return (1 - beta * _difference(pairs.logratios())).relu()


def simpo(pairs: PairLogprobs, *, beta: float, gamma: float) -> Tensor:
    """Simple preference optimisation: mean log-probabilities, a target margin and no reference.

        loss = -log sigmoid(beta * (a(y+) - a(y-)) - gamma)

    Args:
        pairs: the reference is not used.
        beta: > 0, scale of the mean log-probabilities; 2.0 to 10 in the paper.
        gamma: >= 0, in units of beta times nats per token, so that gamma / beta is the margin.

    Returns:
        [B]; ln(1 + e^gamma) if both responses have the same mean log-probability.

    Source:
        Meng et al. 2024, eq. 6, https://arxiv.org/abs/2405.14734
    """
    return -logsigmoid(beta * _difference(pairs.mean_logprobs()) - gamma)


def orpo(pairs: PairLogprobs, *, beta: float) -> Tensor:
    """Odds ratio preference optimisation: the chosen response's NLL plus a log odds ratio.

        odds(y) = exp(a(y)) / (1 - exp(a(y)))
        loss = -a(y+) - beta * log sigmoid(log odds(y+) - log odds(y-))

    The NLL is the mean over the response's tokens and then over the pairs.

    Args:
        pairs: the reference is not used.
        beta: >= 0, the paper's lambda.

    Returns:
        [B].

    Source:
        Hong et al. 2024, eq. 4, 6 and 7, https://arxiv.org/abs/2403.07691
    """
    chosen, rejected = pairs.mean_logprobs()
    return -chosen - beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def dpo_norm(pairs: PairLogprobs, *, beta: float, label_smoothing: float) -> Tensor:
    """Length-normalised DPO: log-ratios are averaged over the response's tokens.

        m = beta * (l(y+) / |y+| - l(y-) / |y-|)
        loss = -(1 - eps) * log sigmoid(m) - eps * log sigmoid(-m)

    Args:
        pairs: needs the reference.
        beta: > 0, scale of the log-ratios per token: about 50 times that of `dpo`; 5 in the paper.
        label_smoothing: eps in [0, 0.5), the assumed share of flipped labels.

    Returns:
        [B]; ln 2 where policy and reference agree.

    Source:
        Lambert et al. 2024 (Tulu 3), section 5.1, https://arxiv.org/abs/2411.15124
    """
    margin = beta * _difference(pairs.mean_logratios())
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


@dataclass(frozen=True)
class PreferenceLoss:
    """An entry of `PREFERENCE_LOSSES`.

    Attributes:
        function: (pairs, **hyperparameters) -> [B]; every function has a `beta`.
        needs_reference: whether `ref_chosen` and `ref_rejected` are used.
        is_length_normalised: whether log-probabilities are averaged over the response's tokens.
    """

    function: Callable[..., Tensor]
    needs_reference: bool
    is_length_normalised: bool


def implicit_rewards(
    loss: PreferenceLoss, pairs: PairLogprobs, *, beta: float
) -> tuple[Tensor, Tensor]:
    """Compute the implicit rewards of both responses; the loss depends on their difference.

        beta * l(y),  beta * l(y) / |y|  or, without a reference,  beta * a(y)

    Args:
        loss: entry of `PREFERENCE_LOSSES`; its attributes choose the formula.
        pairs: with the reference if the loss needs one.
        beta: beta of the loss.

    Returns:
        chosen [B] and rejected [B], without gradient.

    Source:
        Rafailov et al. 2023, section 5, https://arxiv.org/abs/2305.18290;
        Meng et al. 2024, eq. 4, https://arxiv.org/abs/2405.14734
    """
    scores = pairs.logratios() if loss.needs_reference else (pairs.chosen, pairs.rejected)
    tokens = (pairs.chosen_tokens, pairs.rejected_tokens)
    if loss.is_length_normalised:
        scores = (scores[0] / tokens[0], scores[1] / tokens[1])
    return beta * scores[0].detach(), beta * scores[1].detach()


PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {
    "dpo": PreferenceLoss(dpo, True, False),
    "robust": PreferenceLoss(robust, True, False),
    "ipo": PreferenceLoss(ipo, True, True),
    "ipo_summed": PreferenceLoss(ipo_summed, True, False),
    "hinge": PreferenceLoss(hinge, True, False),
    "simpo": PreferenceLoss(simpo, False, True),
    "orpo": PreferenceLoss(orpo, False, True),
    "dpo_norm": PreferenceLoss(dpo_norm, True, True),
}


def _difference(both: tuple[Tensor, Tensor]) -> Tensor:
    return both[0] - both[1]


def _log_odds(mean_logprob: Tensor) -> Tensor:
    # At a mean of exactly 0 the odds are infinite; the largest finite value prevents NaN.
    below_zero = mean_logprob.clamp(max=-torch.finfo(mean_logprob.dtype).eps)
    return below_zero - torch.log(-torch.expm1(below_zero))
