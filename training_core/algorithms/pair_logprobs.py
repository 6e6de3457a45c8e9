"""Log-probabilities of pairs, the input of losses on pairs. Shapes: B pairs.

Symbols of the formulas, with y+ the chosen and y- the rejected response and |y| its tokens:

    l(y)  = log pi(y | x) - log pi_ref(y | x)      log-ratio, nats
    a(y)  = log pi(y | x) / |y|                    mean log-probability, nats per token
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PairLogprobs:
    """Log-probabilities of B pairs, summed over the tokens of each response.

    Attributes:
        chosen: [B] nats, under the policy; with gradient.
        rejected: [B] nats, the same for the rejected responses.
        chosen_tokens: [B] number of tokens of each chosen response, at least 1.
        rejected_tokens: [B].
        ref_chosen: [B] nats, under the reference; None if the loss needs no reference.
        ref_rejected: [B].
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    ref_chosen: Tensor | None = None
    ref_rejected: Tensor | None = None

    def logratios(self) -> tuple[Tensor, Tensor]:
        """Return l(y+) [B] and l(y-) [B].

        Raises:
            ValueError: without the reference's log-probabilities.
        """
        if self.ref_chosen is None or self.ref_rejected is None:
            raise ValueError(
                "expected ref_chosen and ref_rejected, found None: compute the reference's "
                "log-probabilities first, or choose a loss with needs_reference=False"
            )
        return self.chosen - self.ref_chosen, self.rejected - self.ref_rejected

    def mean_logratios(self) -> tuple[Tensor, Tensor]:
        """Return l(y+) / |y+| [B] and l(y-) / |y-| [B]."""
        chosen, rejected = self.logratios()
        return chosen / self.chosen_tokens, rejected / self.rejected_tokens

    def mean_logprobs(self) -> tuple[Tensor, Tensor]:
        """Return a(y+) [B] and a(y-) [B]."""
        return self.chosen / self.chosen_tokens, self.rejected / self.rejected_tokens


def chosen_nll(pairs: PairLogprobs) -> Tensor:
    """Mean negative log-likelihood of the chosen response, a term that keeps this response likely.

        nll = -a(y+)          loss + nll_coef * nll

    Args:
        pairs: the reference is not used.

    Returns:
        [B] nats per token; in a mean over pairs, long and short responses have the same weight.

    Source:
        Pang et al. 2024 (RPO), eq. 1, https://arxiv.org/abs/2404.19733;
        Llama 3.1, section 4.1.4 (coefficient 0.2), https://arxiv.org/abs/2407.21783
    """
    return -pairs.chosen / pairs.chosen_tokens
