"""What the canaries read of the rollouts of a first round."""

from __future__ import annotations

import torch

from stages.canaries.probe import Probe
from stages.canaries.token_checks import CanaryFinding, single_bos
from stages.reinforcement.first_round import prompts_in
from training_core.data.chat import bos_id
from training_core.types import Example


def test_two_bos_tokens_are_an_error_in_a_prompt_but_not_in_what_a_policy_has_sampled(tokenizer):
    def found(*input_ids: int) -> CanaryFinding | None:
        sampled = Example(input_ids, (0,) * 4 + (1,) * (len(input_ids) - 4))
        return single_bos(
            Probe(tokenizer, torch.device("cpu"), 1e-3, sequences=prompts_in([sampled]))
        )

    bos = bos_id(tokenizer)
    assert bos is not None
    of_policy = found(bos, 7, 8, 9, 7, bos, bos)
    assert of_policy is not None
    assert of_policy.passes
    of_template = found(bos, bos, 8, 9, 7)
    assert of_template is not None
    assert not of_template.passes
