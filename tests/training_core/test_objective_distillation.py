"""The objective of distillation, where teacher and student are not quite alike."""

import torch

from tests.tolerances import assert_same_through
from training_core.algorithms.distillation_losses import DIVERGENCES
from training_core.data.batching import collate
from training_core.models.offloading import FrozenWeights
from training_core.objectives.divergence import distillation
from training_core.types import Example

SEQUENCE = Example((5, 9, 7, 30, 12, 2), (0, 0, 0, 1, 1, 1))


def test_padding_of_a_larger_teachers_vocabulary_counts_for_nothing(make_policy):
    """Models of one family share a tokenizer and pad their heads to different sizes."""
    student, teacher, padded = (make_policy(seed=seed).double() for seed in (1, 2, 2))
    size = len(teacher.get_input_embeddings().weight)
    padded.resize_token_embeddings(size + 8, mean_resizing=False)
    assert len(padded.get_output_embeddings().weight) == size + 8
    batch = collate([SEQUENCE], 0)
    losses = [
        distillation(
            FrozenWeights(t, t.device), DIVERGENCES["forward_kl"], temperature=1.0, nll_coef=0.0
        )(student, batch)
        for t in (teacher, padded)
    ]
    assert losses[0].total.item() > 0.01
    assert_same_through(student, losses[1].total, losses[0].total)
    assert torch.isfinite(losses[1].total)
