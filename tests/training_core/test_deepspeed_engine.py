"""DeepSpeed on two gloo processes is plain torch: the same losses, norms and weights."""

from dataclasses import replace

import pytest
import torch
from two_processes import LENGTHS, share, tiny_llama, together

from training_core.dist_info import SINGLE_PROCESS
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError, NonFiniteError
from training_core.loop import train_steps
from training_core.objectives.supervised import supervised
from training_core.types import Loss

pytest.importorskip("deepspeed")
STAGES = (0, 1, 2, 3)
SETTINGS = {
    "learning_rate": 1e-2,
    "schedule": lambda step: 1.0 / (1 + step),
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,  # below each norm of this run, so that clipping is seen
}
HALF = 2


def engine_of(dist_info, stage, **zero):
    if stage is None:
        return TorchEngine(tiny_llama(), **SETTINGS, dist_info=dist_info)
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    return DeepSpeedEngine(tiny_llama(), Zero(stage, **zero), **SETTINGS, dist_info=dist_info)


def train(engine, dist_info, steps, objective=supervised):
    batches = [share(step, dist_info, even=engine.needs_even_ranks) for step in steps]
    return list(train_steps(engine, objective, batches, first_step=steps[0], dist_info=dist_info))


def weights_of(engine):
    with engine.gathered_weights() as model:
        return {name: weight.clone() for name, weight in model.state_dict().items()}


def steps_in_two_halves(dist_info, stage, folder, **zero):
    """Four steps; what stands between them is saved."""
    engine = engine_of(dist_info, stage, **zero)
    dist_info = replace(dist_info, tensor_parallel_size=zero.get("tensor_parallel_size", 1))
    reports = train(engine, dist_info, range(HALF))
    engine.save_shards(folder / f"zero-{stage}")
    state = engine.state_dict()
    reports += train(engine, dist_info, range(HALF, len(LENGTHS)))
    weights = weights_of(engine)
    engine.finish()
    return {
        "reports": reports,
        "weights": weights,
        "kept": engine.model.state_dict(),
        "state": state,
    }


def resumed(dist_info, stage, state, folder):
    engine = engine_of(dist_info, stage)
    engine.load_state_dict(state)
    engine.load_shards(folder / f"zero-{stage}", folder / f"universal-{stage}")
    reports = train(engine, dist_info, range(HALF, len(LENGTHS)))
    weights = weights_of(engine)
    engine.finish()
    return {"reports": reports, "weights": weights}


def refusal(dist_info, num_heads, **zero):
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    try:
        DeepSpeedEngine(
            tiny_llama(num_heads=num_heads), Zero(2, **zero), **SETTINGS, dist_info=dist_info
        )
    except ConfigError as error:
        return str(error)
    return ""


def overflow(dist_info, stage):
    """A step whose gradient is infinite though its loss is not."""
    engine = engine_of(dist_info, stage)
    before = weights_of(engine)

    def steep(model, batch):
        loss = supervised(model, batch)
        weight = model.model.norm.weight
        return Loss(loss.total + ((weight - weight.detach()).sum() ** 2).sqrt(), loss.count)

    message = ""
    try:
        train(engine, dist_info, range(1), steep)
    except NonFiniteError as error:
        message = str(error)
    return message, before, weights_of(engine)


def on_two(dist_info, folder):
    runs = {stage: steps_in_two_halves(dist_info, stage, folder) for stage in STAGES}
    offloaded = steps_in_two_halves(
        dist_info, 3, folder / "offloaded", offload_optimizer=True, offload_parameters=True
    )
    return {
        "runs": runs,
        "offloaded": offloaded,
        "again": {s: resumed(dist_info, s, runs[s]["state"], folder) for s in (2, 3)},
        "overflow": {stage: overflow(dist_info, stage) for stage in (0, 2, 3)},
        # Last: a process in which DeepSpeed has once cut matrices cuts them for good.
        "parallel": steps_in_two_halves(dist_info, 2, folder / "parallel", tensor_parallel_size=2),
        "three": refusal(dist_info, tensor_parallel_size=2, num_heads=3),
    }


def on_one(dist_info, folder, states):
    return {stage: resumed(dist_info, stage, state, folder) for stage, state in states.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def plain():
    engine = engine_of(SINGLE_PROCESS, None)
    reports = train(engine, SINGLE_PROCESS, range(len(LENGTHS)))
    return {"reports": reports, "weights": weights_of(engine)}


@pytest.fixture(scope="module")
def two(folder):
    return together(2, folder / "two", on_two, folder)


@pytest.fixture(scope="module")
def one(folder, two):
    states = {stage: two[0]["runs"][stage]["state"] for stage in STAGES}
    return together(1, folder / "one", on_one, folder, states)[0]


def assert_same(found, expected, first=0):
    reports = zip(found["reports"], expected["reports"][first:], strict=True)
    for ours, theirs in reports:
        assert ours.step == theirs.step
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, abs=1e-5)
        assert ours.learning_rate == theirs.learning_rate
        assert ours.tokens == theirs.tokens
    for name, weight in expected["weights"].items():
        assert (found["weights"][name] - weight).abs().max() <= 1e-5, name


@pytest.mark.parametrize("stage", STAGES)
def test_zero_on_two_ranks_is_plain_torch_on_one(plain, two, stage):
    # Batches of 5, 3, 1 and 4 micro-batches: ZeRO-2 that took each for a whole batch would drop
    # all but the last (open-instruct#1498), and the third leaves one rank without any.
    for rank in two:
        assert_same(rank["runs"][stage], plain)
    assert min(report.grad_norm for report in plain["reports"]) > SETTINGS["max_grad_norm"]


def test_offload_changes_nothing(plain, two):
    assert_same(two[0]["offloaded"], plain)


def test_matrices_that_two_ranks_share_are_trained_as_one(plain, two):
    for rank in two:
        assert_same(rank["parallel"], plain)  # tokens too: both ranks see the same data
        for name, weight in rank["parallel"]["weights"].items():
            assert torch.equal(rank["parallel"]["kept"][name], weight), name


def test_heads_that_cannot_be_shared_evenly_are_refused(two):
    assert "does not divide the model's num_attention_heads 3" in two[0]["three"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_model_has_its_weights_when_the_engine_is_finished(two, stage):
    run = two[1]["runs"][stage]
    for name, weight in run["weights"].items():
        assert torch.equal(run["kept"][name], weight), name


@pytest.mark.parametrize("stage", [2, 3])
def test_a_resumed_run_on_as_many_ranks_goes_on_bit_for_bit(two, stage):
    for rank in two:
        again, run = rank["again"][stage], rank["runs"][stage]
        assert again["reports"] == run["reports"][HALF:]
        assert all(torch.equal(again["weights"][n], w) for n, w in run["weights"].items())


@pytest.mark.parametrize("stage", STAGES)
def test_what_two_ranks_saved_one_rank_resumes(plain, one, stage):
    assert_same(one[stage], plain, first=HALF)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_non_finite_gradient_leaves_the_weights_as_they_were(two, stage):
    message, before, after = two[0]["overflow"][stage]
    assert "the gradient norm is" in message
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_state_of_another_engine_or_stage_is_refused():
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine._zero = Zero(2)
    of_two = {"kind": "deepspeed", "zero_stage": 2, "tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match=r"made with tensor_parallel_size 2, and .* is 1"):
        engine.load_state_dict(of_two)
    with pytest.raises(ConfigError, match=r"made by the engine 'torch'.* is 'deepspeed'"):
        engine.load_state_dict({"kind": "torch"})
    with pytest.raises(ConfigError, match=r"made with zero_stage 3, and .* is 2"):
        engine.load_state_dict({"kind": "deepspeed", "zero_stage": 3})


def test_zero_3_refuses_trained_weights_of_two_dtypes():
    from training_core.engine.zero import Zero, require_one_dtype

    model = tiny_llama().to(torch.bfloat16)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.float())
    require_one_dtype(model, Zero(2))
    with pytest.raises(ConfigError, match="found bfloat16 and float32"):
        require_one_dtype(model, Zero(3))
