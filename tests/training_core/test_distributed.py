"""Several ranks are one process: the same gradients, weights and reports."""

import copy

import pytest
import torch
from two_processes import LENGTHS, share, tiny_llama, together

from training_core import distributed
from training_core.data.batching import WithoutLoss, cut_by_tokens, deal_to_ranks, share_of_rank
from training_core.dist_info import SINGLE_PROCESS, DistInfo, dist_info_from
from training_core.distributed import (
    all_gather_object,
    all_reduce_gradients,
    any_rank,
    broadcast_weights,
    pool_means,
)
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised
from training_core.types import Mean

STEPS = range(len(LENGTHS))
DTYPES = (torch.float32, torch.float64)


def plain_descent(model, *, learning_rate, weight_decay):
    """The weights move by the gradient itself."""
    del weight_decay
    return (torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=learning_rate),)


def trained(dist_info, dtype, **settings):
    model = tiny_llama(dtype)
    # Nobody uses it, so no rank has a gradient for it, and it must not decay.
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2, 2, dtype=dtype)))
    engine = TorchEngine(model, **{"schedule": lambda _: 1.0, "dist_info": dist_info, **settings})
    batches = [share(step, dist_info, even=False) for step in STEPS]
    reports = list(train_steps(engine, supervised, batches, dist_info=dist_info))
    return {"weights": model.state_dict(), "reports": reports, "sizes": [len(b) for b in batches]}


def all_runs(dist_info):
    """One run of each kind, so that the processes start once."""
    adamw = {"learning_rate": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5}
    descent = {"learning_rate": 1.0, "optimizer": plain_descent, "max_grad_norm": 1e9}
    runs = {
        (name, dtype): trained(dist_info, dtype, **settings)
        for dtype in DTYPES
        for name, settings in (("adamw", adamw), ("descent", descent))
    }
    other = tiny_llama(seed=dist_info.rank)  # each rank begins with another model
    before = copy.deepcopy(other.state_dict())
    broadcast_weights(other, dist_info)
    small = [torch.full((3,), 1.0, dtype=d).requires_grad_() for d in DTYPES] * 1
    for parameter in small:
        parameter.grad = torch.full_like(parameter, 1.0 + dist_info.rank)
    distributed.BUCKET_ELEMENTS = 4
    all_reduce_gradients(small, dist_info)
    return {
        "runs": runs,
        "same": (before, other.state_dict()),
        "any": (any_rank(dist_info.rank == 1, dist_info), any_rank(False, dist_info)),
        "gathered": all_gather_object(dist_info.rank, dist_info),
        "pooled": pool_means(
            {"both": Mean(1.0 + dist_info.rank, 2.0), f"only_{dist_info.rank}": Mean(3.0, 4.0)},
            dist_info,
        ),
        "bucketed": [p.grad.tolist() for p in small],
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return together(2, tmp_path_factory.mktemp("two"), all_runs)


@pytest.fixture(scope="module")
def one():
    return all_runs(SINGLE_PROCESS)["runs"]


@pytest.mark.parametrize("kind", ["adamw", "descent"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_two_ranks_end_with_the_weights_of_one_process(one, two, kind, dtype, tolerance):
    expected = one[kind, dtype]["weights"]
    start = tiny_llama(dtype).state_dict()
    for rank in two:
        found = rank["runs"][kind, dtype]["weights"]
        for name, weight in expected.items():
            assert (found[name] - weight).abs().max() <= tolerance, name
    moved = max((expected[n] - start[n]).abs().max() for n in start)
    assert moved > 1e-2  # there was something to agree on
    assert expected["unused"].eq(1.0).all()  # and what nobody used stayed


def test_a_rank_without_a_micro_batch_takes_part(two):
    sizes = [rank["runs"]["adamw", torch.float32]["sizes"] for rank in two]
    assert sizes[0][2] == 1
    assert sizes[1][2] == 0
    assert [a + b for a, b in zip(*sizes, strict=True)] == [len(lengths) for lengths in LENGTHS]


def test_the_reports_are_of_the_whole_batch_and_the_same_on_each_rank(one, two):
    expected = one["adamw", torch.float64]["reports"]
    first, second = (rank["runs"]["adamw", torch.float64]["reports"] for rank in two)
    assert first == second
    for found, report in zip(first, expected, strict=True):
        assert found.tokens == report.tokens == sum(LENGTHS[report.step - 1])
        assert found.loss == pytest.approx(report.loss, abs=1e-12)
        assert found.grad_norm == pytest.approx(report.grad_norm, abs=1e-12)


def test_every_rank_starts_with_the_weights_of_the_first(two):
    (before, first), (other, second) = (rank["same"] for rank in two)
    assert all(
        torch.equal(first[n], before[n]) and torch.equal(second[n], before[n]) for n in first
    )
    assert any(not torch.equal(other[n], before[n]) for n in before)


def test_a_claim_of_one_rank_is_known_to_all(two):
    assert [rank["any"] for rank in two] == [(True, False)] * 2
    assert [rank["gathered"] for rank in two] == [[0, 1]] * 2


def test_means_are_pooled_and_a_rank_need_not_have_all_of_them(two):
    expected = {"both": Mean(3.0, 4.0), "only_0": Mean(3.0, 4.0), "only_1": Mean(3.0, 4.0)}
    assert [rank["pooled"] for rank in two] == [expected] * 2  # 1 + 2 of 2 + 2


def test_gradients_of_several_buckets_and_types_are_added_up(two):
    assert [rank["bucketed"] for rank in two] == [[[3.0] * 3] * 2] * 2  # 1 + 2, twice


def test_the_dearest_items_are_dealt_first_and_the_costs_come_out_near_each_other():
    # 9 to rank 0; 7 to rank 1; 5 to rank 1 (7 < 9): 12; 4 to rank 0: 13; 3 to rank 1: 15
    assert deal_to_ranks([3, 9, 5, 7, 4], 2) == [[1, 4], [0, 2, 3]]
    assert deal_to_ranks([3, 9], 3) == [[1], [0], []]
    assert deal_to_ranks([2, 1, 3], 1) == [[0, 1, 2]]  # one rank sees the batch as it is


def test_each_item_is_dealt_once_whatever_the_number_of_ranks():
    costs = [float((7 * i) % 13 + 1) for i in range(29)]
    for world_size in range(1, 7):
        hands = deal_to_ranks(costs, world_size)
        assert sorted(i for hand in hands for i in hand) == list(range(29))
        totals = [sum(costs[i] for i in hand) for hand in hands]
        assert max(totals) - min(totals) <= max(costs)


def test_even_shares_are_filled_with_repeats_that_have_no_loss():
    shares = [share_of_rank("abc", [5, 4, 2], rank, 2, even=True) for rank in range(2)]
    assert shares == [["a", WithoutLoss("c")], ["b", "c"]]
    lonely = [share_of_rank("a", [5], rank, 2, even=True) for rank in range(2)]
    assert lonely == [["a"], [WithoutLoss("a")]]
    assert share_of_rank("a", [5], 1, 2, even=False) == []


def test_a_batch_is_cut_finely_enough_for_every_rank():
    lengths = [4] * 8
    assert len(cut_by_tokens(lengths, 1000)) == 1
    assert [len(cut) for cut in cut_by_tokens(lengths, 1000, world_size=2)] == [2, 2, 2, 2]
    # Five micro-batches of two for two ranks would be three against two: one is halved.
    cuts = cut_by_tokens([4] * 10, 8, world_size=2)
    assert [len(cut) for cut in cuts] == [1, 1, 2, 2, 2, 2]
    hands = deal_to_ranks([4.0 * len(cut) for cut in cuts], 2)
    assert [sum(len(cuts[i]) for i in hand) for hand in hands] == [5, 5]
    assert sorted(i for cut in cuts for i in cut) == list(range(10))
    assert cut_by_tokens([7, 3], 1000, world_size=8) == [[0], [1]]  # no more than one item each
    assert cut_by_tokens([], 1000, world_size=2) == []


def test_ranks_are_read_from_the_environment():
    assert dist_info_from({}) == SINGLE_PROCESS
    assert dist_info_from({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == DistInfo(1, 4, 1)
    with pytest.raises(ConfigError, match="from 0 to WORLD_SIZE - 1 = 1, found 2"):
        dist_info_from({"RANK": "2", "WORLD_SIZE": "2"})
