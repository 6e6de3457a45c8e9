"""How a batch is cut, padded or packed changes no objective's gradient.

Families 1, 3, 9, 13 and 20 of silent bugs, for every row of every table of losses.
"""

import pytest
import torch

from tests.families.layouts import LAYOUTS, shared
from tests.families.objectives import cases, gradient
from tests.tolerances import assert_same_gradients

PRECISIONS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
CUTS = {
    "one by one": [[0], [1], [2], [3], [4]],
    "unevenly": [[4], [0, 3, 2], [1]],
    "in another order": [[3, 1, 4, 0, 2]],
}
WHOLE = [[0, 1, 2, 3, 4]]


@PRECISIONS
@pytest.mark.parametrize("name", cases())
def test_the_cut_into_micro_batches_changes_no_gradient(name, dtype):
    """Families 1 and 3: a mean per micro-batch, or a second division."""
    case = cases()[name]
    whole = gradient(case, dtype, WHOLE)
    for cuts in CUTS.values():
        assert_same_gradients(case.model, gradient(case, dtype, cuts), whole)


@PRECISIONS
@pytest.mark.parametrize("name", cases())
def test_padding_and_packing_change_no_gradient(name, dtype):
    """Families 9, 13 and 20: positions, ends and neighbours."""
    case = cases()[name]
    whole = gradient(case, dtype, WHOLE)
    for layout in LAYOUTS.values():
        assert_same_gradients(case.model, gradient(case, dtype, WHOLE, layout), whole)


@PRECISIONS
@pytest.mark.parametrize("name", [name for name, case in cases().items() if case.is_paired])
def test_a_shared_prompt_changes_no_gradient(name, dtype):
    case = cases()[name]
    whole = gradient(case, dtype, WHOLE)
    assert_same_gradients(case.model, gradient(case, dtype, WHOLE, shared), whole)
    assert_same_gradients(case.model, gradient(case, dtype, [[2], [4, 0], [1, 3]], shared), whole)
