"""Check the data of a step before training: numbers, examples and problems.

step_datasets   config -> the datasets that a step reads, and how it encodes them
tokenizer       the tokenizer that all steps of a lifecycle share
checks          rows and examples -> numbers and problems
planned_models  model options and lengths of all steps -> problems
recognition     columns of a file -> the kinds of rows that fit
token_view      examples -> text with the trained tokens marked
"""

from __future__ import annotations

from stages.data_check.checks import Checked, Problem, check, overlap
from stages.data_check.step_datasets import Dataset, datasets_of
from stages.data_check.token_view import marked_text
from stages.data_check.tokenizer import tokenizer_of

__all__ = [
    "Checked",
    "Dataset",
    "Problem",
    "check",
    "datasets_of",
    "marked_text",
    "overlap",
    "tokenizer_of",
]
