"""What the models of a stage must have in common, role by role; imports no torch.

`training_core.models.model_contract` describes a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

ContractField = Literal[
    "vocabulary",
    "merges",
    "chat_template",
    "special_tokens",
    "end_tokens",
    "padding",
    "vocabulary_size",
    "dtype",
    "tied_weights",
    "positions",
]
ALLOW_DIFFERENCES = (
    "Fields of the contract in which the reference may differ from the policy, e.g. "
    "`chat_template`."
)

SAME_AS_POLICY: Mapping[str, tuple[ContractField, ...]] = {
    # It gets the token ids of the policy, and its log-probabilities are subtracted from the
    # policy's. Weights of another dtype are converted, and ties do not change the numbers.
    "reference": (
        "vocabulary",
        "merges",
        "special_tokens",
        "chat_template",
        "end_tokens",
        "padding",
        "vocabulary_size",
    ),
    # It gets the token ids of the policy, but may have been trained with another template; the
    # stage itself compares the two vocabularies.
    "teacher": (),
    # It reads texts with its own tokenizer. As a critic it reads the policy's ids, and the stage
    # then compares the two vocabularies.
    "reward_model": (),
    # The evaluation prompts each policy with its own tokenizer and template.
    "baseline": (),
}
"""Role -> the fields in which its model must be equal to the input `policy`."""
