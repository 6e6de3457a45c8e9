"""The table of all canaries. The record of a stage names those that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stages.canaries.model_checks import equal_reference, padding_invariance, split_invariance
from stages.canaries.probe import Probe
from stages.canaries.token_checks import CanaryFinding, mask_audit, single_bos
from stages.canaries.update_checks import first_kl, first_ratio, sampler_gap, weight_sync
from stages.configs.canary_record import CanaryName


@dataclass(frozen=True)
class Canary:
    """One check.

    Attributes:
        check: measures; None if the probe has nothing to measure.
        shows: what a pass means, in words, for manifest and report.
    """

    check: Callable[[Probe], CanaryFinding | None]
    shows: str


CANARIES: Mapping[CanaryName, Canary] = {
    "mask_audit": Canary(
        mask_audit, "rows whose trained tokens are not exactly the response and its end token"
    ),
    "single_bos": Canary(single_bos, "sequences with two bos tokens, one after the other"),
    "padding_invariance": Canary(
        padding_invariance, "mean change of a token's numbers by padding on either side"
    ),
    "split_invariance": Canary(
        split_invariance, "change of the loss by cutting a batch into micro-batches"
    ),
    "equal_reference": Canary(
        equal_reference, "distance of the first loss from ln 2 if the reference is the policy"
    ),
    "weight_sync": Canary(weight_sync, "engines whose weights differ from the trainer's"),
    "sampler_gap": Canary(
        sampler_gap, "mean gap of log-probabilities, sampler to trainer (nats per token)"
    ),
    "first_ratio": Canary(
        first_ratio, "mean log-ratio of policy to old policy before the first update (nats)"
    ),
    "first_kl": Canary(
        first_kl, "mean log-ratio to an equal reference before the first update (nats)"
    ),
}
